"""The boards of Lockstep, by the file that each is generated into."""

from lockstep_dashboards.explorer import explorer
from lockstep_dashboards.layout import FOLDER, read_board
from lockstep_dashboards.panel import Board

NAMES = ("executive", "on-call", "job", "node", "fabric", "monitor")


def _boards() -> dict[str, Board]:
    boards = {f"{name}.json": read_board(FOLDER / f"{name}.yaml") for name in NAMES}
    monitor = boards["monitor.json"]
    rest = explorer(boards, monitor.variables, monitor.annotations)
    return {**boards, "explorer.json": rest}


BOARDS = _boards()
