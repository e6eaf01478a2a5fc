"""Samples in the background: every worker runs once a tick, rendered once, kept as bytes."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from lockstep_agent.collector import Guard, Part, Reading, Run, Tier
from lockstep_agent.exposition.text import Exposition, Renderer
from lockstep_agent.health import Judge, Verdicts
from lockstep_agent.runtime.collector_worker import CollectorWorker
from lockstep_catalogue import health

_FIRST_PATIENCE_SECONDS = 1.5
_IN_TURN_SECONDS = 0.01  # threads that wake all at once only fight for the interpreter's lock
_GENERATIONS = 2  # workers, and those that they bring
_RanOn = tuple[str, Run]
"""A worker's name, and a run of one of its collectors."""


class Sampler:
    """Keeps the newest exposition.

    Args:
        workers: the workers of this moment; a run may bring others.
        judge: gives verdicts on what the workers told.
        clock: wall clock, in seconds.

    Attributes:
        latest: what a scrape is given; None before the first tick.
    """

    def __init__(
        self,
        workers: Callable[[], Sequence[CollectorWorker]],
        tick_seconds: float,
        clock: Callable[[], float] = time.time,
        judge: Judge | None = None,
    ) -> None:
        self._workers = workers
        self._verdicts = Verdicts(judge or Judge())
        self._guard, self._renderer = Guard(self._verdicts), Renderer()
        self._tick_seconds, self._clock = tick_seconds, clock
        self._states: list[tuple[str, str]] = []
        self._judged: Part = ()
        self._tallies: dict[str, _Tally] = {}
        self._sampled = threading.Event()
        self.latest: Exposition | None = None

    def sample(self, patience_seconds: float = 5.0) -> Exposition:
        """Runs what is due in every worker, waits for it in patience, judges and renders."""
        return self._sample(patience_seconds, always_judge=True)

    def tick(self, patience_seconds: float = 5.0) -> Exposition:
        """As ``sample``, one of many: judges only when a verdict may have become another."""
        return self._sample(patience_seconds, always_judge=False)

    def _sample(self, patience_seconds: float, *, always_judge: bool) -> Exposition:
        self._run_all(time.monotonic() + patience_seconds)
        workers = self._workers()
        parts = [part for worker in workers for part in worker.parts()]
        runs = [(worker.name, run) for worker in workers for run in worker.take_runs()]
        if self._may_judge_otherwise(workers, runs) or always_judge:
            self._verdicts.hear(parts)
            judged = self._guard.run()
            self._judged = judged.readings
            runs.insert(0, (judged.name, judged))
        parts.append(self._judged)
        parts.extend(self._of_the_runs(workers, runs))
        self.latest = self._renderer.render(parts, self._clock())
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

    def _run_all(self, deadline_seconds: float) -> None:
        started_once: set[CollectorWorker] = set()
        for _ in range(_GENERATIONS):
            fresh = [worker for worker in self._workers() if worker not in started_once]
            started_once.update(fresh)
            started = [
                worker
                for worker in fresh
                if worker.run_once() and not worker.wait(_IN_TURN_SECONDS)
            ]
            for worker in started:
                worker.wait(deadline_seconds - time.monotonic())

    def _may_judge_otherwise(
        self, workers: Sequence[CollectorWorker], runs: Sequence[_RanOn]
    ) -> bool:
        """Whether a worker fell silent or came back, or what is read seldom was read.

        Nothing else that is told each tick makes a verdict another one at once.
        """
        before, self._states = self._states, [(worker.name, worker.state) for worker in workers]
        return before != self._states or any(run.tier is not Tier.EVERY_TICK for _, run in runs)

    def _of_the_runs(
        self, workers: Sequence[CollectorWorker], runs: Sequence[_RanOn]
    ) -> Iterator[Part]:
        names = {worker.name for worker in workers} | {self._verdicts.name}
        for worker, run in runs:
            self._tallies.setdefault(run.name, _Tally(run.name)).add(worker, run)
        return (tally.part(names) for tally in self._tallies.values())

    def _run(self) -> None:
        due = time.monotonic()
        patience_seconds = _FIRST_PATIENCE_SECONDS
        while True:
            self.tick(patience_seconds)
            patience_seconds = self._tick_seconds / 2
            due = max(due + self._tick_seconds, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0.0))


class _Tally:
    """The runs of one collector over all workers that have one of its name."""

    def __init__(self, name: str) -> None:
        self._labels = (name,)
        self._last: dict[str, Run] = {}
        self._failures = 0
        self._part: Part | None = None

    def add(self, worker: str, run: Run) -> None:
        """Takes in one run."""
        self._last[worker] = run
        self._failures += run.failed
        self._part = None

    def part(self, workers: set[str]) -> Part:
        """Its readings; the same ones until there is another run or a worker has gone."""
        gone = self._last.keys() - workers
        for worker in gone:
            del self._last[worker]
        if self._part is None or gone:
            self._part = tuple(self._readings())
        return self._part

    def _readings(self) -> Iterator[Reading]:
        """Success when the last run of each worker had it, the longest duration, all failures."""
        last = self._last.values()
        if last:
            failed = any(run.failed for run in last)
            yield Reading(health.COLLECTOR_SUCCESS, self._labels, 0 if failed else 1)
            seconds = max(run.seconds for run in last)
            yield Reading(health.COLLECTOR_DURATION, self._labels, seconds)
        yield Reading(health.COLLECTOR_FAILURES, self._labels, self._failures)
