"""Phases of a rank and flags of a row, as small integers for the hot path."""

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.page.layout import PHASES, ROW_FLAGS

CODE = {name: code for code, name in enumerate(PHASES)}
INIT = CODE["init"]
DATA = CODE["data"]
FORWARD = CODE["forward"]
BACKWARD = CODE["backward"]
SYNC = CODE["sync"]
OPTIMIZER = CODE["optimizer"]
EVAL = CODE["eval"]
OTHER = CODE["other"]
RESTORE = CODE["restore"]
DONE = CODE["done"]
FAILED = CODE["failed"]

# Phases with seconds in a step row; the others count in the totals only.
STEP_SLICE = slice(CODE[STEP_PHASES[0]], CODE[STEP_PHASES[-1]] + 1)
assert tuple(PHASES[STEP_SLICE]) == STEP_PHASES
NUM_PHASES = len(PHASES)
NOT_WAITING = -1  # instead of a phase: a block holds the phase, and its waits belong to it
FLAG = {name: 1 << bit for bit, name in enumerate(ROW_FLAGS)}


def code_of(name: str) -> int:
    """The code of a phase; ValueError where no phase has that name."""
    if name not in CODE:
        raise ValueError(f"phase {name!r} is none of {', '.join(CODE)}")
    return CODE[name]
