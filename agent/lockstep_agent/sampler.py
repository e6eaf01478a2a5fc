"""Samples in the background: all collectors once a tick, rendered once, kept as bytes."""

import threading
import time
from collections.abc import Callable, Iterable

from lockstep_agent.collector import Collector, Guard
from lockstep_agent.exposition import Exposition, render


class Sampler:
    """Keeps the newest exposition.

    Args:
        clock: wall clock, in seconds.

    Attributes:
        latest: what a scrape is given; None before the first tick.
    """

    def __init__(
        self,
        collectors: Iterable[Collector],
        tick_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._guards = [Guard(collector) for collector in collectors]
        self._tick_seconds, self._clock = tick_seconds, clock
        self._sampled = threading.Event()
        self.latest: Exposition | None = None

    def sample(self) -> Exposition:
        """Runs every collector once and renders what they yield."""
        readings = [reading for guard in self._guards for reading in guard.run()]
        self.latest = render(readings, self._clock())
        self._sampled.set()
        return self.latest

    def start(self, patience_seconds: float = 5.0) -> None:
        """Begins to sample for as long as the process lives, and waits for the first sample.

        Args:
            patience_seconds: how long a driver that hangs may delay the start.
        """
        threading.Thread(target=self._run, name="sampler", daemon=True).start()
        self._sampled.wait(patience_seconds)

    def is_fresh(self) -> bool:
        """Whether the newest exposition is at most ten ticks, or ten seconds, old."""
        limit_seconds = max(10 * self._tick_seconds, 10.0)
        latest = self.latest
        return latest is not None and self._clock() - latest.rendered_seconds <= limit_seconds

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            self.sample()
            due = max(due + self._tick_seconds, time.monotonic())
            time.sleep(due - time.monotonic())
