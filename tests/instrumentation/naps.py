"""Sleeps of a loop whose true length is kept: a busy machine sleeps longer than it is told."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# What a loop of two small layers does in a phase beside its sleep; the shortest sleep is twice it.
BESIDE_SECONDS = 0.0015
_WARM_UP = 2
_ROUNDING_SECONDS = 1e-6


class Naps:
    """Seconds truly slept, by step and by the phase that the loop was in."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begins anew, with the first step."""
        self._phase = "none"
        self._steps = [defaultdict[str, float](float)]

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Until its end, whatever sleeps belongs to this phase."""
        self._phase = phase
        yield
        self._phase = "none"

    def take(self, seconds: float) -> None:
        """Sleeps."""
        begun = time.perf_counter()
        time.sleep(seconds)
        self._steps[-1][self._phase] += time.perf_counter() - begun

    def end_step(self) -> None:
        """What sleeps from now on belongs to the next step."""
        self._steps.append(defaultdict(float))

    def check(self, rows: list[dict[str, Any]], *phases: str) -> None:
        """Each of these phases holds its sleeps in every row, and in the quickest hardly more.

        The first steps do more than sleep; a busy machine makes others longer, never one shorter.
        """
        for phase in phases:
            beside = [
                row[f"{phase}_seconds"] - slept[phase]
                for row, slept in zip(rows, self._steps, strict=False)
            ]
            assert min(beside) > -_ROUNDING_SECONDS, (phase, beside)
            assert min(beside[_WARM_UP:]) < BESIDE_SECONDS, (phase, beside)
            assert all(slept[phase] > 2 * BESIDE_SECONDS for slept in self._steps[: len(rows)])
