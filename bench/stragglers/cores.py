"""Processor time of each rank, and how long it waited for a core, by Linux's own counters."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

WINDOW_STEPS = 1000
_NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Reading:
    """One process's counts since its start.

    Attributes:
        processor_seconds: user and system time of all its threads.
        waited_seconds: time ready to run with no core free (``schedstat`` of its live threads).
        wall_seconds: a clock of which only differences mean something.
    """

    processor_seconds: float
    waited_seconds: float
    wall_seconds: float


class Cores:
    """A reading at the beginning of each window of a run."""

    def __init__(self) -> None:
        self._readings: list[Reading] = []

    def step(self, number: int) -> None:
        """Reads where a window begins; a few dozen microseconds, once in ``WINDOW_STEPS``."""
        if number % WINDOW_STEPS == 0:
            self._readings.append(_read())

    def write(self, root: Path, rank: int) -> None:
        """Writes the readings next to the pages, with one more of now."""
        readings = [asdict(reading) for reading in (*self._readings, _read())]
        _file(root, rank).write_text(json.dumps(readings), encoding="utf-8")


def read_cores(root: Path, ranks: int) -> list[list[Reading]]:
    """The readings that ``write`` wrote, by rank."""
    files = (_file(root, rank) for rank in range(ranks))
    return [
        [Reading(**reading) for reading in json.loads(file.read_text(encoding="utf-8"))]
        for file in files
    ]


def _file(root: Path, rank: int) -> Path:
    return root / f"cores-{rank}.json"


def _read() -> Reading:
    waited = 0
    for thread in Path("/proc/self/task").iterdir():
        try:
            waited += int((thread / "schedstat").read_text(encoding="ascii").split()[1])
        except OSError:  # the thread has ended
            continue
    return Reading(time.process_time(), waited / _NANOSECONDS, time.perf_counter())
