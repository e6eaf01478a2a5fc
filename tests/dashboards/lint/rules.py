"""Applies all rules to boards."""

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep_dashboards.grafana import render
from lockstep_dashboards.panel import Board

from .dashboard_json import Json
from .own import OWN_RULES, bad_uids, too_many
from .upstream import EXCLUDED, RULES


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong with a board, by which rule."""

    board: str
    rule: str
    text: str


def lint_json(dashboard: Json) -> list[Complaint]:
    """What the rules of dashboard-linter find in a dashboard's JSON, but for the excluded ones."""
    return [
        Complaint(str(dashboard.get("uid")), name, text)
        for name, rule in RULES.items()
        if name not in EXCLUDED
        for text in rule(dashboard)
    ]


def lint_board(board: Board) -> list[Complaint]:
    """What all rules find in a board."""
    own = [
        Complaint(board.uid, name, text) for name, rule in OWN_RULES.items() for text in rule(board)
    ]
    return [*lint_json(render(board)), *own]


def lint_boards(boards: Mapping[str, Board]) -> list[Complaint]:
    """What all rules find in all boards, and in what they show together."""
    of_boards = [complaint for board in boards.values() for complaint in lint_board(board)]
    uids = [Complaint("all boards", "stable-uids", text) for text in bad_uids(boards)]
    number = [Complaint("all boards", "bounds", text) for text in too_many(boards)]
    return [*of_boards, *uids, *number]
