"""The boards of Lockstep by file, as their layouts have them."""

from lockstep_dashboards.layout import FOLDER, read_board

NAMES = ("executive", "on-call", "job", "node", "fabric", "monitor")
BOARDS = {f"{name}.json": read_board(FOLDER / f"{name}.yaml") for name in NAMES}
