"""Sleeps of a loop with their measured lengths: a busy machine sleeps longer than requested."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Work of a loop of two small layers in a phase, besides its sleep; the shortest sleep is twice it.
WORK_SECONDS = 0.0015
_WARM_UP = 2
_ROUNDING_SECONDS = 1e-6


class SleepLedger:
    """Seconds measured asleep, by step and by the phase of the loop."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets all sleeps; the next one belongs to the first step."""
        self._phase = "none"
        self._steps = [defaultdict[str, float](float)]

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Sleeps inside the block belong to this phase."""
        self._phase = phase
        yield
        self._phase = "none"

    def sleep(self, seconds: float) -> None:
        """Sleeps, and adds the measured seconds."""
        began = time.perf_counter()
        time.sleep(seconds)
        self._steps[-1][self._phase] += time.perf_counter() - began

    def end_step(self) -> None:
        """Sleeps from now on belong to the next step."""
        self._steps.append(defaultdict(float))

    def check(self, rows: list[dict[str, Any]], *phases: str) -> None:
        """Each phase contains its sleeps in every row, and in the quickest little more.

        Less than half of the sleeps: a sleep of another phase, as long as its own, is too much on
        a slow machine too. The first steps do more than sleep; a busy machine makes steps longer,
        never shorter.
        """
        for phase in phases:
            work_seconds = [
                row["phase_seconds"][phase] - slept[phase]
                for row, slept in zip(rows, self._steps, strict=False)
            ]
            assert min(work_seconds) > -_ROUNDING_SECONDS, (phase, work_seconds)
            settled = list(zip(work_seconds, self._steps, strict=False))[_WARM_UP:]
            assert any(work < slept[phase] / 2 for work, slept in settled), (phase, work_seconds)
            assert all(slept[phase] > 2 * WORK_SECONDS for slept in self._steps[: len(rows)])
