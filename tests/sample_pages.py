"""Writes pages as the monitor does: a row, the totals, then a commit."""

import time
from pathlib import Path

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.files.operations import NAMES, OperationWriter
from lockstep_records.page.layout import PHASES, SLOT
from lockstep_records.page.writer import PageWriter, RankIdentity

IDENTITY = RankIdentity(job_id="job-a", rank=3, world_size=8, cluster="c", node="n1")
TOKENS_PER_STEP = 512
SECONDS = dict.fromkeys(STEP_PHASES, 0.0) | {"data": 0.25, "backward": 0.5, "sync": 0.125}


def write_step(writer: PageWriter, tokens: int = TOKENS_PER_STEP) -> None:
    """One step of 0.875 s, numbered from 0, with its totals."""
    number, total = writer.words[SLOT.word("steps")], sum(SECONDS.values())
    writer.count_step(number, total, tokens, 4)
    writer.append(
        step=number,
        start_ns=number * 10,
        seconds=total,
        phase_seconds=[*SECONDS.values()],
        tokens=tokens,
        samples=4,
    )
    for phase, seconds in SECONDS.items():
        writer.floats[SLOT.word("phase_seconds") + PHASES.index(phase)] += seconds
    writer.commit(time.monotonic_ns())


def written_page(folder: Path, *, steps: int, rows: int = 16) -> Path:
    """A closed page with so many steps in it, of a process that still runs."""
    # A lock would end with the writer.
    writer = PageWriter(folder / "rank-00003.page", IDENTITY, rows, locks=False)
    for _ in range(steps):
        write_step(writer)
    writer.close()
    return writer.path


def hammer(path: str) -> None:
    """Writes steps, each of other tokens, as fast as it can until somebody kills the process."""
    writer = PageWriter(Path(path), IDENTITY, rows=64)
    while True:
        for tokens in (1, 10, 100):
            write_step(writer, tokens)


def hammer_operations(path: str) -> None:
    """Writes steps of one operation of each name until somebody kills the process."""
    writer = OperationWriter(Path(path), rank=3, rows=200)
    step = 0
    while True:
        for code in range(len(NAMES)):
            writer.append(step, code, step * 100 + code, step * 100 + code + 5, 0)
        step += 1
