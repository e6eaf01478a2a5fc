"""Every board, row and variable that a runbook, a page or a board points to exists."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from lockstep_catalogue.alert_boards import ALERT_BOARDS
from lockstep_dashboards.grafana import render
from lockstep_dashboards.layout import BOARDS
from lockstep_dashboards.panel import Board
from lockstep_dashboards.snapshot.page import PageOptions, board_page

from .board_answers import answer, panels_of

REPOSITORY = Path(__file__).parents[2]
UID_BOARDS = {board.uid: board for board in BOARDS.values()}
RUNBOOKS = sorted((REPOSITORY / "alerts" / "runbooks").glob("*.md"))
PAGES = [*RUNBOOKS, *sorted((REPOSITORY / "docs").rglob("*.md")), REPOSITORY / "README.md"]
KINDS = "job|node|fabric|executive|on-call|monitor"
NAMED_BOARD = re.compile(rf"`(lockstep-(?:{KINDS}))`([^`]*)")
NAMED_ROW = re.compile(r"rows? (\*[^*]+\*(?:(?:, | and )\*[^*]+\*)*)")


def rows_named(text: str) -> list[tuple[str, str]]:
    """Each board that a text names, with each row that it names right after it."""
    return [
        (uid, row)
        for uid, rest in NAMED_BOARD.findall(text)
        for rows in NAMED_ROW.findall(rest)
        for row in re.findall(r"\*([^*]+)\*", rows)
    ]


def test_every_row_that_a_page_names_is_on_its_board() -> None:
    missing = [
        f"{path.name}: {uid}, {row}"
        for path in PAGES
        for uid, row in rows_named(path.read_text(encoding="utf-8"))
        if row not in {each.title for each in UID_BOARDS[uid].rows}
    ]
    assert missing == []


def find_faults(text: str) -> list[str]:
    """What is wrong with the boards that a runbook names."""
    section = text.partition("## Dashboards\n")[2].partition("\n## ")[0]
    uids = set(re.findall(rf"lockstep-(?:{KINDS})\b", text))
    faults = [f"no board {uid}" for uid in sorted(uids - UID_BOARDS.keys())]
    return faults if section.strip() and "None yet" not in section else ["no section", *faults]


def test_a_runbook_names_its_boards_and_each_exists() -> None:
    faults = {path.stem: find_faults(path.read_text(encoding="utf-8")) for path in RUNBOOKS}
    assert {name: found for name, found in faults.items() if found} == {}


def test_alerts_link_to_the_board_of_the_job_with_its_variables() -> None:
    names = {variable.name for variable in UID_BOARDS["lockstep-job"].variables}
    for path in (REPOSITORY / "alerts" / "generated").glob("*.rules.yaml"):
        for address in re.findall(r"/d/\S+", path.read_text(encoding="utf-8")):
            uid = address.removeprefix("/d/").partition("?")[0]
            assert uid in UID_BOARDS, address
            used = re.findall(r"var-(\w+)=", address)
            assert set(used) <= {variable.name for variable in UID_BOARDS[uid].variables} | names


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.uid)
def test_links_of_panels_lead_to_boards_and_carry_time_and_variables(board: Board) -> None:
    rendered = render(board)
    for panel in panels_of(rendered):
        defaults = panel["fieldConfig"]["defaults"].get("links", [])
        overrides = [
            link
            for each in panel["fieldConfig"]["overrides"]
            for field in each["properties"]
            if field["id"] == "links"
            for link in field["value"]
        ]
        for link in [*defaults, *overrides]:
            if link.get("targetBlank"):
                name = link["url"].partition("}")[0].removeprefix("${")
                [variable] = [x for x in rendered["templating"]["list"] if x["name"] == name]
                assert (variable["type"], variable["query"][:7]) == ("textbox", "http://")
                continue
            parts = urlsplit(link["url"])
            target = UID_BOARDS[parts.path.removeprefix("/d/")]
            assert "${__url_time_range}" in parts.query
            assert "${cluster:queryparam}" in parts.query
            chosen = {x.removeprefix("var-") for x in parse_qs(parts.query) if x[:4] == "var-"}
            assert chosen <= {variable.name for variable in target.variables}
            assert chosen


def test_a_job_leads_to_its_board_a_node_to_its_own_and_an_adapter_to_the_fabric() -> None:
    addresses = {
        urlsplit(link).path
        for board in BOARDS.values()
        for link in re.findall(r"/d/lockstep-[a-z-]+\?", str(render(board)))
    }
    assert addresses == {"/d/lockstep-job", "/d/lockstep-node", "/d/lockstep-fabric"}


def shipped_alerts() -> dict[str, dict[str, Any]]:
    """The rule of each alert, by its name."""
    return {
        rule["alert"]: rule
        for path in (REPOSITORY / "alerts" / "generated").glob("*.rules.yaml")
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


def test_each_alert_has_a_board_a_row_and_variables_that_answer_it() -> None:
    alerts = {name for name in shipped_alerts() if name != "TrainWatchdog"}
    assert alerts == ALERT_BOARDS.keys()
    for name, where in ALERT_BOARDS.items():
        board = UID_BOARDS[where.board]
        assert where.row in {row.title for row in board.rows}, name
        names = {variable.label.name for variable in board.variables}
        assert {label.name for label in where.labels} <= names, name


def test_the_address_of_an_alert_has_base_time_labels_and_row() -> None:
    address = ALERT_BOARDS["WorkAtRisk"].address("https://grafana.example")
    assert address == (
        "https://grafana.example/d/lockstep-job?from=now-1h&to=now"
        "&var-cluster={{ urlquery $labels.cluster }}&var-job_id={{ urlquery $labels.job_id }}"
        "#checkpoints"
    )
    page = board_page(answer(UID_BOARDS["lockstep-job"]), PageOptions(address=""))
    assert '<section id="checkpoints">' in page


CONDITIONS = yaml.safe_load((REPOSITORY / "alerts" / "slos.yaml").read_text(encoding="utf-8"))


def declared(alert: str, field: str) -> float:
    """A limit of an alert, from where the rule has it."""
    entries = [x for part in CONDITIONS.values() if isinstance(part, list) for x in part]
    [entry] = [entry for entry in entries if entry.get("alert") == alert]
    return float(entry[field])


def test_limits_on_boards_are_those_of_the_rules() -> None:
    page_at = declared("JobLosing", "above_ratio")
    ticket_at = CONDITIONS["limits"]["late_ratio"]
    [objective] = [x for x in CONDITIONS["objectives"] if x["slo"] == "throughput"]
    panels = {panel.title: panel for panel in UID_BOARDS["lockstep-job"].panels}
    limits = [each.at for each in panels["Lateness as a share of the step"].thresholds]
    assert limits == [None, ticket_at, page_at]
    assert panels["Lateness, ranks by time"].maximum == page_at
    for title in ("Who holds it back", "Late ranks"):
        assert panels[title].thresholds[-1].at == page_at
        assert f"> {ticket_at})" in panels[title].queries[0].expression or (
            f"> {ticket_at}" in panels[title].queries[0].expression
        )
    assert panels["Throughput against its best"].thresholds[-1].at == objective["min_ratio"]


def test_alerts_that_boards_name_are_shipped() -> None:
    texts = [
        query.expression
        for board in UID_BOARDS.values()
        for x in board.panels
        for query in x.queries
    ]
    named = {
        name
        for text in texts
        for names in re.findall(r'alertname[=!]~?"([^"]+)"', text)
        for name in names.split("|")
    }
    assert len(named) > 5
    assert named <= shipped_alerts().keys()
