"""The rules that boards obey: bounds, recorded series, explanations, rates."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from simulated_cluster.boards_on_cluster import num_opening_queries

from lockstep_catalogue import Kind, Metric, Recorded
from lockstep_catalogue.alert_boards import ALERT_BOARDS
from lockstep_catalogue.labels import CLUSTER, JOB_ID, RANK
from lockstep_dashboards.grafana import render
from lockstep_dashboards.layout import BOARDS
from lockstep_dashboards.panel import Board, Panel, View
from lockstep_dashboards.scope import Scope
from lockstep_dashboards.snapshot.page import PageOptions, board_page
from lockstep_prometheus.promql import Selector, selectors

from .board_answers import answer, panels_of

MAX_OPEN_PANELS = 25
MAX_OPENING_QUERIES = 25
MAX_PANELS = 200
_ANNOTATIONS = ("Critical alerts", "Restarts")
_ALERTS = re.compile(r"\bALERTS(?:_FOR_STATE)?\b(?:\{([^}]*)\})?")
_LEAST_FIRST = re.compile(r"^bottomk\(")
_SCOPE = Scope(
    chosen={"job_id": ("a",), "node": ("n",)}, end=1e9, range_seconds=900, scrape_seconds=15
)
_RATE_SECONDS = 60.0
_GROWTH = ("rate", "irate", "increase")
# The count itself is meant where a query says so: its last or highest value over a range.
_COUNTER_FUNCTIONS = (*_GROWTH, "last_over_time", "max_over_time")


def _queries(board: Board) -> Iterator[tuple[Panel, str]]:
    for panel in board.panels:
        for query in panel.queries:
            yield panel, query.expression


def _read(board: Board) -> Iterator[tuple[Panel, str, Selector]]:
    for panel, expression in _queries(board):
        for selector in selectors(_SCOPE.fill(expression)):
            yield panel, expression, selector


def _bounds(board: Board) -> Iterator[str]:
    if len(board.opened_panels) > MAX_OPEN_PANELS:
        yield f"opens {len(board.opened_panels)} panels, more than {MAX_OPEN_PANELS}"
    number = num_opening_queries(board)
    if number > MAX_OPENING_QUERIES:
        yield f"asks {number} times when opened, over {MAX_OPENING_QUERIES}"


def _cluster(board: Board) -> Iterator[str]:
    for panel, _, each in _read(board):
        if each.series is None:
            yield f"{panel.title}: {each.name} is not in the catalogue"
        elif CLUSTER in each.series.exposed_labels and CLUSTER.name not in {
            name for name, _, _ in each.matchers
        }:
            yield f"{panel.title}: {each.name} is of all clusters, not of the chosen ones"


def _ranks(board: Board) -> Iterator[str]:
    """Where no single job is chosen, a series a rank would be thousands."""
    if JOB_ID.name in {variable.name for variable in board.variables}:
        return
    for panel, expression, each in _read(board):
        is_per_rank = each.series is not None and RANK in each.series.exposed_labels
        if is_per_rank and " by (" not in expression and "topk(" not in expression:
            yield f"{panel.title}: {each.name} is asked for by rank"


def _objectives(board: Board) -> Iterator[str]:
    for panel, _, each in _read(board):
        if panel.shows_windows and not isinstance(each.series, Recorded):
            yield f"{panel.title}: an objective is read from {each.name}, not recorded"


def _explained(board: Board) -> Iterator[str]:
    for panel in board.panels:
        for word in ("Good: ", "Otherwise: ", "Series: "):
            if word not in panel.description:
                yield f"{panel.title}: the description lacks {word.strip()}"


def _no_constants(board: Board) -> Iterator[str]:
    for panel, expression in _queries(board):
        if "vector(" in expression or "absent(" in expression:
            yield f"{panel.title}: a constant hides missing data"


def _annotated(board: Board) -> Iterator[str]:
    missing = set(_ANNOTATIONS) - {annotation.title for annotation in board.annotations}
    for title in sorted(missing):
        yield f"draws no {title.lower()}"


def _titles(board: Board) -> Iterator[str]:
    titles = [panel.title for panel in board.panels]
    for title in sorted({title for title in titles if titles.count(title) > 1}):
        yield f"has two panels that are called {title}"


def _no_value(board: Board) -> Iterator[str]:
    for panel in board.panels:
        if panel.view is View.STAT and not panel.no_value:
            yield f"{panel.title}: says nothing where no series has a value"


def _sorted(board: Board) -> Iterator[str]:
    """A table of the least begins with the least, and one of the most with the most."""
    for panel in board.panels:
        if panel.view is not View.TABLE:
            continue
        first = (
            panel.queries[panel.value_names.index(panel.sorted_by)]
            if (panel.sorted_by in panel.value_names)
            else panel.queries[0]
        )
        if _LEAST_FIRST.match(first.expression) and not panel.ascending:
            yield f"{panel.title}: shows the least and begins with the most"


def _columns(board: Board) -> Iterator[str]:
    for panel in board.panels:
        if panel.view is View.TABLE:
            values = zip(panel.value_names, panel.ones, strict=True)
            names = [label.name for label in panel.columns]
            names += [name for name, is_one in values if not is_one]
            if panel.title in names or len(set(names)) < len(names):
                yield f"{panel.title}: a column repeats the title or another column"


def _alerts(board: Board) -> Iterator[str]:
    """Watchdog always fires, and alerts of no severity only keep others quiet."""
    expressions = [expression for _, expression in _queries(board)]
    expressions += [annotation.expression for annotation in board.annotations]
    for expression in expressions:
        for found in _ALERTS.finditer(expression):
            if "severity" not in (found[1] or ""):
                yield f"reads alerts of any severity, Watchdog too: {expression}"


def _rates(board: Board) -> Iterator[str]:
    """As dashboard-linter's target-rate-interval and target-counter-agg rules have it."""
    for panel, _, each in _read(board):
        if each.function in {"rate", "irate"} and each.range_seconds != _RATE_SECONDS:
            yield f"{panel.title}: {each.function} over {each.range_seconds:g} s"
        is_counter = isinstance(each.series, Metric) and each.series.kind is Kind.COUNTER
        if is_counter and each.function not in _COUNTER_FUNCTIONS:
            yield f"{panel.title}: {each.name} is a counter and has no rate or increase"


RULES: Mapping[str, Callable[[Board], Iterator[str]]] = {
    "bounds": _bounds, "chosen-cluster": _cluster, "no-raw-ranks": _ranks,
    "objectives-are-recorded": _objectives, "explained": _explained, "no-constants": _no_constants,
    "annotated": _annotated, "unique-titles": _titles, "no-value": _no_value,
    "worst-first": _sorted, "no-repeated-columns": _columns, "alerts-of-a-severity": _alerts,
    "rates": _rates,
}  # fmt: skip


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.uid)
@pytest.mark.parametrize("rule", RULES)
def test_a_board_obeys_the_rule(board: Board, rule: str) -> None:
    assert list(RULES[rule](board)) == []


def test_there_are_no_more_panels_than_anybody_reads_and_uids_follow_from_files() -> None:
    assert sum(len(board.panels) for board in BOARDS.values()) <= MAX_PANELS
    assert [board.uid for board in BOARDS.values()] == [
        f"lockstep-{name.removesuffix('.json')}" for name in BOARDS
    ]


REPOSITORY = Path(__file__).parents[2]
UID_BOARDS = {board.uid: board for board in BOARDS.values()}
RUNBOOKS = sorted((REPOSITORY / "alerts" / "runbooks").glob("*.md"))
KINDS = "job|node|fabric|executive|on-call|monitor"


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


CONDITIONS = yaml.load((REPOSITORY / "alerts" / "slos.yaml").read_text("utf-8"), yaml.CSafeLoader)


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
