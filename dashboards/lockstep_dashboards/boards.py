"""The boards of Lockstep by file and by name."""

from difflib import get_close_matches

from lockstep_dashboards.layout import FOLDER, read_board
from lockstep_dashboards.panel import Board

NAMES = ("executive", "on-call", "job", "node", "fabric", "monitor")
BOARDS = {f"{name}.json": read_board(FOLDER / f"{name}.yaml") for name in NAMES}
SHIPPED = {name.removesuffix(".json"): board for name, board in BOARDS.items()}
"""Lockstep's own boards by their short names."""


def find_board(name: str) -> tuple[str, Board]:
    """Short name and board, of a name or a uid.

    Raises:
        ValueError: there is none; the text names the closest.
    """
    for short, board in SHIPPED.items():
        if name in {short, board.uid}:
            return short, board
    close = get_close_matches(name, SHIPPED, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ValueError(f"board {name!r} does not exist; {hint}the boards are {', '.join(SHIPPED)}")
