"""The boards that a snapshot can be made of: those of Lockstep, and any file of a dashboard."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from lockstep_dashboards.boards import BOARDS
from lockstep_dashboards.grafana import board_json
from lockstep_dashboards.snapshot.board_file import (
    BoardError,
    GrafanaBoard,
    read_board,
    read_board_file,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownBoard:
    """A board, its short name, and why some of its panels may have no data, by their title."""

    name: str
    board: GrafanaBoard
    may_be_empty: Mapping[str, str]


def shipped_boards() -> list[KnownBoard]:
    """Lockstep's own boards, as Grafana would load them."""
    return [
        KnownBoard(
            name=file_name.removesuffix(".json"),
            board=read_board(json.loads(board_json(board))),
            may_be_empty={x.title: x.may_be_empty for x in board.panels if x.may_be_empty},
        )
        for file_name, board in BOARDS.items()
    ]


def find_board(name: str) -> KnownBoard:
    """The board of a name, of a uid, or of a path to the JSON of a dashboard.

    Raises:
        BoardError: there is none; the text names the closest.
    """
    if name.endswith(".json"):
        return KnownBoard(name=Path(name).stem, board=read_board_file(Path(name)), may_be_empty={})
    boards = shipped_boards()
    for item in boards:
        if name in {item.name, item.board.uid}:
            return item
    names = [item.name for item in boards]
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    raise BoardError(
        f"board {name!r} does not exist; {hint}the boards are {', '.join(names)},"
        " and a path to the JSON of a dashboard"
    )
