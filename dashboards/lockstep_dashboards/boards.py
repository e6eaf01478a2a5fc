"""The boards of Lockstep, by the file that each is generated into."""

from lockstep_dashboards.completion import complete
from lockstep_dashboards.layout import FOLDER, read_board

NAMES = ("executive", "on-call", "job", "node", "fabric")
BOARDS = complete({f"{name}.json": read_board(FOLDER / f"{name}.yaml") for name in NAMES})
