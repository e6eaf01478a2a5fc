"""The lint finds nothing in the boards, and each of its rules finds what it is for."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lockstep_catalogue.training import LOSS
from lockstep_dashboards.boards import BOARDS
from lockstep_dashboards.grafana import render
from lockstep_dashboards.panel import Board, Panel, Query, View

from .own import OWN_RULES
from .rules import lint_board, lint_boards, lint_json
from .upstream import EXCLUDED, RULES

EXECUTIVE = BOARDS["executive.json"]

NODE = BOARDS["node.json"]

JOB = BOARDS["job.json"]

Json = dict[str, Any]


def test_the_boards_have_no_complaint() -> None:
    assert lint_boards(BOARDS) == []


def set_variable(name: str, **fields: Any) -> Callable[[Json], None]:
    def change(board: Json) -> None:
        [variable] = [x for x in board["templating"]["list"] if x["name"] == name]
        variable.update(fields)

    return change


def set_panel(**fields: Any) -> Callable[[Json], None]:
    def change(board: Json) -> None:
        [first, *_] = [x for x in board["panels"] if x["type"] != "row"]
        first.update(fields)

    return change


def set_query(**fields: Any) -> Callable[[Json], None]:
    def change(board: Json) -> None:
        [first, *_] = [x for x in board["panels"] if x["type"] != "row"]
        first["targets"][0].update(fields)

    return change


LOKI = {"datasource": {"type": "loki"}}


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("template-datasource-rule", set_variable("datasource", label="Source")),
        ("template-datasource-rule", set_variable("cluster", type="datasource")),
        ("template-label-promql-rule", set_variable("cluster", definition="up")),
        ("template-on-time-change-reload-rule", set_variable("cluster", refresh=1)),
        ("panel-datasource-rule", set_panel(datasource={"uid": "P1"})),
        ("panel-title-description-rule", set_panel(description="")),
        ("panel-units-rule", set_panel(fieldConfig={"defaults": {}})),
        ("panel-no-targets-rule", set_panel(targets=[])),
        ("target-promql-rule", set_query(expr="sum by (")),
        ("target-rate-interval-rule", set_query(expr="rate(x_total[5m])")),
        ("target-counter-agg-rule", set_query(expr="sum(x_total)")),
        ("target-logql-rule", set_query(expr="{a=", **LOKI)),
        ("target-logql-auto-rule", set_query(expr='rate({a="b"}[5m])', **LOKI)),
        ("uneditable-dashboard-rule", lambda board: board.update(editable=True)),
    ],
)
def test_each_rule_of_dashboard_linter_finds_what_it_is_for(
    rule: str, change: Callable[[Json], None]
) -> None:
    board = render(JOB)
    assert not lint_json(board)
    change(board)
    assert {complaint.rule for complaint in lint_json(board)} >= {rule}


def test_all_17_rules_are_there_and_each_excluded_one_has_its_reason() -> None:
    assert len(RULES) == 17
    assert EXCLUDED.keys() <= RULES.keys()
    for name in EXCLUDED:
        assert list(RULES[name](json.loads(json.dumps(render(JOB)))))


def with_panel(board: Board, **fields: Any) -> Board:
    """The board with another first panel."""
    [first, *rows] = board.rows
    panel: Panel = replace(first.panels[0], **fields)
    return replace(board, rows=(replace(first, panels=(panel, *first.panels[1:])), *rows))


def asking(text: str) -> tuple[Query, ...]:
    return (Query(expression=text),)


NO_CLUSTER = f'max by (node) ({LOSS.name}{{job_id="$job_id"}})'
STAT_FIRST = BOARDS["on-call.json"]
REPEATING = (Query(expression="x", heading="rank"),)
RAW_RANKS = "lockstep_train_steps" + '_total{cluster=~"$cluster"}'


@pytest.mark.parametrize(
    ("rule", "board"),
    [
        ("chosen-cluster", with_panel(JOB, queries=asking(NO_CLUSTER))),
        ("chosen-cluster", with_panel(JOB, queries=asking("lockstep" + "_train_nothing"))),
        ("no-raw-ranks", with_panel(NODE, queries=asking(RAW_RANKS))),
        ("objectives-are-recorded", with_panel(EXECUTIVE, queries=asking(NO_CLUSTER))),
        ("explained", with_panel(JOB, description="It is good.")),
        ("no-constants", with_panel(JOB, queries=asking("a or vector(0)"))),
        ("annotated", replace(JOB, annotations=())),
        ("unique-titles", with_panel(JOB, title="Late ranks")),
        ("no-value", with_panel(STAT_FIRST, no_value="")),
        ("limits-are-shown", with_panel(JOB, description="Good: below 8 %.", thresholds=())),
        ("worst-first", with_panel(JOB, queries=asking("bottomk(5, x)"), sort="", columns=())),
        ("no-repeated-columns", with_panel(JOB, sort="rank", queries=REPEATING)),
        ("alerts-of-a-severity", with_panel(JOB, queries=asking("count (ALERTS)"))),
        ("bounds", replace(JOB, rows=tuple(replace(row, collapsed=False) for row in JOB.rows))),
    ],
)
def test_each_rule_of_our_own_finds_what_it_is_for(rule: str, board: Board) -> None:
    assert {complaint.rule for complaint in lint_board(board)} >= {rule}
    assert rule in OWN_RULES


def test_more_panels_than_anybody_reads_are_found() -> None:
    [first, *rows] = JOB.rows
    many = tuple(
        replace(panel, title=f"{n} {panel.title}") for n in range(9) for panel in JOB.panels
    )
    crowded = replace(JOB, rows=(replace(first, panels=(*first.panels, *many)), *rows))
    texts = [each.text for each in lint_boards({**BOARDS, "job.json": crowded})]
    assert any("panels, more than 180" in text for text in texts)
    assert sum(len(board.panels) for board in BOARDS.values()) <= 180


def test_a_board_whose_uid_is_not_its_file_is_found() -> None:
    renamed = {"job-of-mine.json": JOB}
    assert "stable-uids" in {each.rule for each in lint_boards(renamed)}


def test_a_text_needs_no_query_and_any_other_panel_does() -> None:
    text = Panel(
        view=View.TEXT, title="t", description="d", unit="short", queries=(), width=1, height=1,
        content="Hello",
    )  # fmt: skip
    assert text.content
    with pytest.raises(AssertionError):
        replace(text, content="")
