"""Samples in the background: every lane is beaten once a tick, rendered once, kept as bytes."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from lockstep_agent.collector import AnyReading, Guard, Reading, Run
from lockstep_agent.exposition import Exposition, Renderer
from lockstep_agent.health import Judge, Verdicts
from lockstep_agent.lane import Lane
from lockstep_catalogue import health

_FIRST_PATIENCE_SECONDS = 1.5
_IN_TURN_SECONDS = 0.01  # threads that wake all at once only fight for the interpreter's lock
_GENERATIONS = 2  # lanes, and those that they bring


class Sampler:
    """Keeps the newest exposition.

    Args:
        lanes: the lanes of this moment; while one is beaten it may bring others.
        judge: gives verdicts on what the lanes told.
        clock: wall clock, in seconds.

    Attributes:
        latest: what a scrape is given; None before the first tick.
    """

    def __init__(
        self,
        lanes: Callable[[], Sequence[Lane]],
        tick_seconds: float,
        clock: Callable[[], float] = time.time,
        judge: Judge | None = None,
    ) -> None:
        self._lanes = lanes
        self._verdicts = Verdicts(judge or Judge())
        self._guard, self._renderer = Guard(self._verdicts), Renderer()
        self._tick_seconds, self._clock = tick_seconds, clock
        self._tallies: dict[str, _Tally] = {}
        self._sampled = threading.Event()
        self.latest: Exposition | None = None

    def sample(self, patience_seconds: float = 5.0) -> Exposition:
        """Runs what is due in every lane, waits for it in patience, renders what there is then."""
        self._beat_all(time.monotonic() + patience_seconds)
        lanes = self._lanes()
        readings = [reading for lane in lanes for reading in lane.readings()]
        self._verdicts.hear(readings)
        judged = self._guard.run()
        readings.extend(judged.readings)
        readings.extend(self._of_the_runs(lanes, judged))
        self.latest = self._renderer.render(readings, self._clock())
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

    def _beat_all(self, deadline_seconds: float) -> None:
        beaten: set[Lane] = set()
        for _ in range(_GENERATIONS):
            fresh = [lane for lane in self._lanes() if lane not in beaten]
            beaten.update(fresh)
            started = [lane for lane in fresh if lane.beat() and not lane.wait(_IN_TURN_SECONDS)]
            for lane in started:
                lane.wait(deadline_seconds - time.monotonic())

    def _of_the_runs(self, lanes: Iterable[Lane], judged: Run) -> Iterator[AnyReading]:
        self._tallies.setdefault(judged.name, _Tally()).add(judged.name, judged)
        for lane in lanes:
            for run in lane.take_runs():
                self._tallies.setdefault(run.name, _Tally()).add(lane.name, run)
        names = {judged.name, *(lane.name for lane in lanes)}
        for name, tally in self._tallies.items():
            yield from tally.readings(name, names)

    def _run(self) -> None:
        due = time.monotonic()
        patience_seconds = _FIRST_PATIENCE_SECONDS
        while True:
            self.sample(patience_seconds)
            patience_seconds = self._tick_seconds / 2
            due = max(due + self._tick_seconds, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0.0))


class _Tally:
    """The runs of one collector over all lanes that have one of its name."""

    def __init__(self) -> None:
        self._last: dict[str, Run] = {}
        self._failures = 0

    def add(self, lane: str, run: Run) -> None:
        self._last[lane] = run
        self._failures += run.failed

    def readings(self, name: str, lanes: set[str]) -> Iterator[Reading]:
        """Success when the last run of each lane had it, the longest duration, all failures."""
        last = [run for lane, run in self._last.items() if lane in lanes]
        labels = (name,)
        if last:
            failed = any(run.failed for run in last)
            yield Reading(health.COLLECTOR_SUCCESS, labels, 0 if failed else 1)
            yield Reading(health.COLLECTOR_DURATION, labels, max(run.seconds for run in last))
        yield Reading(health.COLLECTOR_FAILURES, labels, self._failures)
