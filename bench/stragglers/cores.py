"""What each rank took of the cores, and how long it waited for one, by Linux's own counts."""

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
        processor_seconds: user and system, of all its threads.
        waited_seconds: ready to run, and no core was free (``schedstat`` of its living threads).
        wall_seconds: of no meaning but in differences.
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
        """Leaves them beside the pages, with one more of now."""
        told = [asdict(one) for one in (*self._readings, _read())]
        _file(root, rank).write_text(json.dumps(told), encoding="utf-8")


def read_cores(root: Path, ranks: int) -> list[list[Reading]]:
    """What ``write`` wrote, of each rank."""
    files = (_file(root, rank) for rank in range(ranks))
    return [
        [Reading(**one) for one in json.loads(file.read_text(encoding="utf-8"))] for file in files
    ]


def _file(root: Path, rank: int) -> Path:
    return root / f"cores-{rank}.json"


def _read() -> Reading:
    waited = 0
    for thread in Path("/proc/self/task").iterdir():
        try:
            waited += int((thread / "schedstat").read_text(encoding="ascii").split()[1])
        except OSError:  # it ended meanwhile
            continue
    return Reading(time.process_time(), waited / _NANOSECONDS, time.perf_counter())
