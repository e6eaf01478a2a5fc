"""Samples in the background: once a tick every worker runs and one exposition is rendered."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from lockstep_agent.collector import Guard, Part, Reading, Run, Tier
from lockstep_agent.exposition.text import Exposition, Renderer
from lockstep_agent.health.judge import Judge, Verdicts
from lockstep_agent.runtime.collector_worker import CollectorWorker
from lockstep_catalogue import agent

_log = logging.getLogger(__name__)
_FIRST_TIMEOUT_SECONDS = 1.5
# Threads that wake all at once only compete for the interpreter's lock, so each gets a head start.
_HEAD_START_SECONDS = 0.01
_NAME = "sampler"
_GIVE_UP_SECONDS = _LOG_SECONDS = 60.0
_GENERATIONS = 2  # the driver's worker may add those of the GPUs, which run in the same tick
_WorkerRun = tuple[str, Run]
"""A worker's name, and a run of one of its collectors."""


class Sampler:
    """Keeps the newest exposition.

    Args:
        workers: lists the workers of this moment; the run of one may add others.
        tick_seconds: interval between two samples.
        clock: wall clock, in seconds.
        judge: gives verdicts on the readings.
        renderer: writes the expositions; by default all readings, as they are.

    Attributes:
        latest: what a scrape is answered with; None before the first tick.
        failure: why sampling has ended; empty while it goes on.
    """

    def __init__(
        self,
        workers: Callable[[], Sequence[CollectorWorker]],
        tick_seconds: float,
        clock: Callable[[], float] = time.time,
        judge: Judge | None = None,
        renderer: Renderer | None = None,
    ) -> None:
        self._workers = workers
        self._verdicts = Verdicts(judge or Judge())
        self._guard, self._renderer = Guard(self._verdicts), renderer or Renderer()
        self._tick_seconds, self._clock = tick_seconds, clock
        self._states: list[tuple[str, str]] = []
        self._verdict_part: Part = ()
        self._tallies: dict[str, _Tally] = {}
        self._sampled = threading.Event()
        self._next_log_seconds = 0.0
        self._on_end: Callable[[], None] = lambda: None
        self.latest: Exposition | None = None
        self.failure = ""

    def sample(self, timeout_seconds: float = 5.0, *, always_judge: bool = True) -> Exposition:
        """Runs what is due in every worker, waits for it until the time-out, judges and renders.

        Not ``always_judge``: it judges only when a verdict may have changed.
        """
        self._run_all(time.monotonic() + timeout_seconds)
        workers = self._workers()
        parts = [part for worker in workers for part in worker.parts()]
        runs = [(worker.name, run) for worker in workers for run in worker.take_runs()]
        if self._may_change_verdict(workers, runs) or always_judge:
            self._verdicts.ingest(parts)
            verdict_run = self._guard.run()
            self._verdict_part = verdict_run.readings
            runs.insert(0, (verdict_run.name, verdict_run))
        parts.append(self._verdict_part)
        parts.extend(self._run_parts(workers, runs))
        self.latest = self._renderer.render(parts, self._clock())
        self._sampled.set()
        return self.latest

    def start(
        self, timeout_seconds: float = 5.0, on_end: Callable[[], None] = lambda: None
    ) -> None:
        """Begins to sample for as long as the process lives, and waits for the first sample.

        Args:
            timeout_seconds: how long a driver that hangs may delay the start.
            on_end: called in the sampler's thread where it cannot go on; ``failure`` says why.
        """
        self._on_end = on_end
        threading.Thread(target=self._run, name="sampler", daemon=True).start()
        self._sampled.wait(timeout_seconds)

    def is_fresh(self) -> bool:
        """Whether the newest exposition is at most ten ticks, or ten seconds, old."""
        limit_seconds = max(10 * self._tick_seconds, 10.0)
        latest = self.latest
        return latest is not None and self._clock() - latest.rendered_seconds <= limit_seconds

    def _count_failure(self, failure: str) -> None:
        tally = self._tallies.setdefault(_NAME, _Tally(_NAME))
        tally.add(_NAME, Run(_NAME, Tier.EVERY_TICK, (), 0.0, failed=True))
        if time.monotonic() >= self._next_log_seconds:
            self._next_log_seconds = time.monotonic() + _LOG_SECONDS
            _log.error("tick=failed error=%r", failure, exc_info=True)

    def _run_all(self, deadline_seconds: float) -> None:
        handled: set[CollectorWorker] = set()
        for _ in range(_GENERATIONS):
            fresh = [worker for worker in self._workers() if worker not in handled]
            handled.update(fresh)
            started = [
                worker
                for worker in fresh
                if worker.run_once() and not worker.wait(_HEAD_START_SECONDS)
            ]
            for worker in started:
                worker.wait(deadline_seconds - time.monotonic())

    def _may_change_verdict(
        self, workers: Sequence[CollectorWorker], runs: Sequence[_WorkerRun]
    ) -> bool:
        """Whether a worker fell silent or recovered, or a collector of a slower tier has run.

        Verdicts depend on those: no reading of every tick changes a verdict at once.
        """
        before, self._states = self._states, [(worker.name, worker.state) for worker in workers]
        return before != self._states or any(run.tier is not Tier.EVERY_TICK for _, run in runs)

    def _run_parts(
        self, workers: Sequence[CollectorWorker], runs: Sequence[_WorkerRun]
    ) -> Iterator[Part]:
        names = {worker.name for worker in workers} | {self._verdicts.name}
        for worker, run in runs:
            self._tallies.setdefault(run.name, _Tally(run.name)).add(worker, run)
        return (tally.part(names) for tally in self._tallies.values())

    def _run(self) -> None:
        self.failure = "its thread has ended"
        try:
            self._run_ticks()
        finally:
            self._sampled.set()  # whoever starts it need not wait for what will not come
            self._on_end()

    def _run_ticks(self) -> None:
        due_seconds = good_seconds = time.monotonic()
        timeout_seconds = _FIRST_TIMEOUT_SECONDS
        while True:
            try:
                self.sample(timeout_seconds, always_judge=False)
                good_seconds = time.monotonic()
            except Exception as error:  # noqa: BLE001  # one tick is lost, and counted
                self._count_failure(f"{type(error).__name__}: {error}")
                if time.monotonic() - good_seconds > _GIVE_UP_SECONDS:
                    self.failure = f"every tick of a minute fails, the last with {error!r}"
                    return
            timeout_seconds = self._tick_seconds / 2
            # After a long tick the next one starts at once; the missed ones are not made up for.
            due_seconds = max(due_seconds + self._tick_seconds, time.monotonic())
            time.sleep(max(due_seconds - time.monotonic(), 0.0))


class _Tally:
    """The runs of one collector, over all workers that have a collector of its name."""

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
        """Its readings; the same object until there is another run or a worker has ended."""
        ended = self._last.keys() - workers
        for worker in ended:
            del self._last[worker]
        if self._part is None or ended:
            self._part = tuple(self._readings())
        return self._part

    def _readings(self) -> Iterator[Reading]:
        """Success if the last run of every worker succeeded, longest duration, all failures."""
        last = self._last.values()
        if last:
            failed = any(run.failed for run in last)
            yield Reading(agent.COLLECTOR_SUCCESS, self._labels, 0 if failed else 1)
            seconds = max(run.seconds for run in last)
            yield Reading(agent.COLLECTOR_DURATION, self._labels, seconds)
        yield Reading(agent.COLLECTOR_FAILURES, self._labels, self._failures)
