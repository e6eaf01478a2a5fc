"""Every board is valid classic Grafana JSON, and its committed file is up to date."""

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from click.testing import CliRunner

from lockstep_catalogue import METRICS, RECORDED, Unit
from lockstep_catalogue.training import LAST_PROGRESS, LOSS
from lockstep_dashboards.command import check_board, dashboards
from lockstep_dashboards.grafana import (
    MAX_CONFIGMAP_BYTES,
    SCHEMA_VERSION,
    as_configmaps,
    as_provisioning,
    board_json,
    render,
)
from lockstep_dashboards.layout import BOARDS, FOLDER, panel, read_board
from lockstep_dashboards.panel import MAX_SERIES, Board, Query, Row, View, pack
from lockstep_dashboards.scope import Scope, open_board
from lockstep_prometheus.client import Prometheus

from .board_answers import panels_of

REPOSITORY = Path(__file__).parents[2]
SCOPE = Scope(
    chosen={"job_id": ("a",), "cluster": ("c",), "node": ("n",)},
    end=1e9,
    range_seconds=900,
    scrape_seconds=15,
)
OFFERED = {"status": "success", "data": ["a"]}
EVERY_BOARD = pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.uid)


def nulls(value: Any) -> int:
    """Nulls but those of the lowest thresholds."""
    if isinstance(value, dict) and value.keys() == {"color", "value"}:
        return 0
    if isinstance(value, dict):
        return sum(map(nulls, value.values()))
    return sum(map(nulls, value)) if isinstance(value, list) else value is None


def overlap(first: dict[str, int], second: dict[str, int]) -> bool:
    return all(
        first[at] < second[at] + second[size] and second[at] < first[at] + first[size]
        for at, size in (("x", "w"), ("y", "h"))
    )


@pytest.mark.parametrize("name", BOARDS)
def test_the_committed_file_is_generated_from_the_board(name: str) -> None:
    path = REPOSITORY / "dashboards" / "generated" / name
    assert path.read_text(encoding="utf-8") == board_json(BOARDS[name])


@EVERY_BOARD
def test_a_board_is_of_schema_39_and_nobody_edits_it(board: Board) -> None:
    rendered = render(board)
    assert next(iter(rendered)) == "description"
    assert "lockstep dashboards generate" in rendered["description"]
    assert rendered["schemaVersion"] == SCHEMA_VERSION == 39
    assert (rendered["editable"], rendered["graphTooltip"], rendered["uid"]) == (
        False,
        1,
        board.uid,
    )
    assert nulls(rendered) == 0


@EVERY_BOARD
def test_panels_have_ids_of_their_own_and_no_two_overlap(board: Board) -> None:
    panels = render(board)["panels"]
    numbers = [item["id"] for item in [*panels, *panels_of(render(board))]]
    assert len(set(numbers)) == len(panels) + sum(len(x.get("panels", [])) for x in panels)
    for item in panels:
        grid = item["gridPos"]
        assert 0 <= grid["x"] < grid["x"] + grid["w"] <= 24
    for first, second in combinations(panels, 2):
        assert not overlap(first["gridPos"], second["gridPos"]), (first["title"], second["title"])


@EVERY_BOARD
def test_a_panel_names_its_series_and_unit_and_queries_the_chosen_source(board: Board) -> None:
    declared = {each.name for each in METRICS} | {each.name for each in RECORDED}
    for rendered in panels_of(render(board)):
        assert rendered["title"]
        named = re.search(r"Series: (\S+?)\.$", rendered["description"])
        assert named is not None
        assert named[1] in declared | {"ALERTS"}
        assert rendered["fieldConfig"]["defaults"]["unit"]
        assert rendered["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert rendered["type"] in {view.value for view in View}
        letters = [query["refId"] for query in rendered["targets"]]
        assert letters == sorted(set(letters))


@EVERY_BOARD
def test_variables_are_the_source_then_labels_reloaded_with_the_time(board: Board) -> None:
    variables = render(board)["templating"]["list"]
    addresses = [each for each in variables if each["type"] == "textbox"]
    assert variables[len(variables) - len(addresses) :] == addresses
    source, cluster, *others, filters = variables[: len(variables) - len(addresses)]
    assert ("current" in source, filters["type"]) == (False, "adhoc")
    assert (source["name"], source["label"], source["type"]) == (
        "datasource",
        "Data Source",
        "datasource",
    )
    assert (cluster["name"], cluster["multi"], cluster["refresh"]) == ("cluster", True, 2)
    assert [each["name"] for each in others] == [each.name for each in board.variables[1:]]
    assert all(each["refresh"] == 2 for each in others)


@EVERY_BOARD
def test_promtool_takes_every_query(board: Board, tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH")
    expressions = [query.expression for item in board.panels for query in item.queries]
    expressions += [annotation.expression for annotation in board.annotations]
    rules = [{"record": f"q:{n}", "expr": SCOPE.fill(text)} for n, text in enumerate(expressions)]
    # label_replace writes a group of its pattern as $1.
    assert not re.search(r"\$[a-z_{]", json.dumps(rules))
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_timestamp_has_no_panel_but_its_age_has() -> None:
    with pytest.raises(KeyError):
        panel(View.STAT, LAST_PROGRESS, Query(expression="x"))
    assert panel(View.STAT, LAST_PROGRESS, Query(expression="x"), unit=Unit.SECONDS).unit == "s"


def test_a_panel_that_does_not_fit_begins_a_new_line() -> None:
    wide, narrow = (panel(View.STAT, LOSS, Query(expression="x"), width=width) for width in (20, 8))
    positions = [position for _, position in pack((Row(title="r", panels=(wide, narrow, narrow)),))]
    assert [(position.x, position.y) for position in positions] == [(0, 0), (0, 1), (0, 9), (8, 9)]


def test_a_stale_file_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    done = CliRunner().invoke(
        dashboards, ["generate", "--check", "--out", str(tmp_path)], standalone_mode=False
    )
    assert done.return_value == 1
    assert "run lockstep dashboards generate" in done.output
    assert (tmp_path / "job.json").read_text() == "{}"


def test_what_is_generated_is_up_to_date_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    for arguments in (["generate"], ["generate", "--check"]):
        done = CliRunner().invoke(
            dashboards, [*arguments, "--out", str(tmp_path)], standalone_mode=False
        )
        assert done.return_value == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(BOARDS)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--prometheus localhost:9090", "must begin with http:// or https://"),
        ("--job-id a", "cannot be queried"),
        ("--job-id ../a", "job id '../a' must be"),
        ("--board jop", "did you mean job?"),
        ("--var node", "--var 'node' must be NAME=VALUE"),
    ],
)
def test_bad_input_to_check_is_refused_in_one_sentence(arguments: str, sentence: str) -> None:
    line = ["check", "--prometheus", "http://127.0.0.1:1", *arguments.split()]
    done = CliRunner().invoke(dashboards, line)
    assert done.exit_code == 2
    assert sentence in done.output


def answering(body: Any, board: Board) -> list[str]:
    """The problems when every query gets the same answer, and every variable a value."""
    succeeds = isinstance(body, dict) and body.get("status") == "success"

    def answer(request: httpx.Request) -> httpx.Response:
        offers = "/label/" in request.url.path and succeeds
        return httpx.Response(200, text=json.dumps(OFFERED if offers else body))

    reply = httpx.MockTransport(answer)
    with Prometheus("http://prometheus", transport=reply) as server:
        return [finding.problem for finding in check_board(board, SCOPE, server)]


def success(*values: str) -> dict[str, Any]:
    result = [{"metric": {}, "values": [[0, value]], "value": [0, value]} for value in values]
    return {"status": "success", "data": {"result": result}}


def test_errors_emptiness_and_floods_are_problems() -> None:
    board = BOARDS["job.json"]
    assert not any(answering(success("1"), board))
    assert "empty" in answering(success(), board)
    assert "empty" in answering(success("NaN"), board)
    assert all(answering({"status": "error", "error": "no such function"}, board))
    assert any("more than 50" in x for x in answering(success(*["1"] * (MAX_SERIES + 1)), board))


JOB = BOARDS["job.json"]

FILES_SCOPE = Scope(end=1e9, range_seconds=900, scrape_seconds=15)


def test_each_board_is_a_configmap_that_the_sidecar_finds() -> None:
    files = as_configmaps(BOARDS)
    kustomization = yaml.safe_load(files.pop("kustomization.yaml"))
    assert kustomization["resources"] == list(files)
    for text, (name, board) in zip(files.values(), BOARDS.items(), strict=True):
        assert len(text.encode()) < MAX_CONFIGMAP_BYTES
        content = yaml.safe_load(text)
        assert (content["kind"], content["metadata"]["name"]) == ("ConfigMap", board.uid)
        assert content["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert content["metadata"]["annotations"]["grafana_folder"] == "Lockstep"
        assert json.loads(content["data"][name])["uid"] == board.uid


def test_the_provisioning_folder_has_provider_source_and_boards(tmp_path: Path) -> None:
    arguments = ["generate", "--format", "provisioning", "--out", str(tmp_path)]
    done = CliRunner().invoke(dashboards, arguments, standalone_mode=False)
    assert done.return_value == 0
    [provider] = yaml.safe_load((tmp_path / "dashboards/lockstep.yaml").read_text())["providers"]
    assert provider["allowUiUpdates"] is False
    [source] = yaml.safe_load((tmp_path / "datasources/lockstep.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    boards = tmp_path / "dashboards" / "lockstep"
    assert provider["options"]["path"].endswith("/dashboards/lockstep")
    assert sorted(path.name for path in boards.iterdir()) == sorted(BOARDS)
    assert len(as_provisioning(BOARDS)) == len(BOARDS) + 2


def test_other_formats_do_not_go_among_the_generated_boards() -> None:
    done = CliRunner().invoke(dashboards, ["generate", "--format", "configmap"])
    assert done.exit_code == 2
    assert "needs a folder of its own" in done.output


def offering(*values: str) -> Prometheus:
    text = json.dumps({"status": "success", "data": values})
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=text))
    return Prometheus("http://prometheus:9090", transport=transport)


def test_a_board_opens_for_the_first_job_where_none_is_chosen() -> None:
    with offering("job-10", "job-2") as server:
        opened = open_board(JOB, FILES_SCOPE, server)
    assert opened.chosen == {"job_id": ("job-2",)}
    assert opened.offered["job_id"] == ("job-2", "job-10")


def test_a_matcher_of_one_value_needs_one() -> None:
    assert FILES_SCOPE.fill('x{cluster=~"$cluster"}') == 'x{cluster=~".*"}'
    with pytest.raises(ValueError, match="job_id needs one value"):
        FILES_SCOPE.fill('x{job_id="$job_id"}')


HEAD = """\
uid: lockstep-x
title: X
description: Of a test.
range: 1h
refresh: 1m
variables:
  - {label: cluster, title: Cluster, source: lockstep_train_step, several: true}
  - {label: job_id, title: Job, source: lockstep_train_step}
"""
STEP, RANKS = "lockstep_train" + "_step", "lockstep_train" + "_ranks"


def write(folder: Path, panel: str) -> Path:
    (folder / "annotations.yaml").write_text((FOLDER / "annotations.yaml").read_text())
    path = folder / "x.yaml"
    path.write_text(f"{HEAD}rows: [{{title: R, panels: [{{{panel}}}]}}]\n")
    return path


def test_queries_are_restricted_to_what_the_variables_choose(tmp_path: Path) -> None:
    [panel] = read_board(write(tmp_path, f"stat: {STEP}, expr: max ({STEP})")).panels
    assert panel.queries[0].expression == f'max ({STEP}{{cluster=~"$cluster", job_id="$job_id"}})'
    assert (panel.title, panel.width, panel.height) == ("Step", 4, 4)


def test_a_panel_can_name_the_variables_that_restrict_it(tmp_path: Path) -> None:
    [panel] = read_board(write(tmp_path, f"stat: {STEP}, chosen: [job_id], expr: {STEP}")).panels
    assert panel.queries[0].expression == f'{STEP}{{job_id="$job_id"}}'


@pytest.mark.parametrize(
    ("panel", "reason"),
    [
        ("stat: lockstep_nothing, expr: x", "unknown name 'lockstep_nothing'"),
        (f"stat: {STEP}, expr: x, colour: red", "unknown name 'colour'"),
        (f"table: {STEP}, expr: x, columns: [nodes]", "unknown name 'nodes'"),
        (f"""stat: {STEP}, expr: '{STEP}{{rank="1"}}'""", f"{STEP} has no label rank"),
        (f"""stat: {RANKS}, expr: '{RANKS}{{state="x"}}'""", "state='x' is not one of init"),
    ],
)
def test_what_the_catalogue_does_not_know_is_refused_with_its_place(
    tmp_path: Path, panel: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=r"x\.yaml: row 'R', panel .*") as refused:
        read_board(write(tmp_path, panel))
    assert reason in str(refused.value)
