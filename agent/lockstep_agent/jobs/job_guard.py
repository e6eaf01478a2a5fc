"""Contains what one job's files do to a collector: an error costs that job's readings of a run."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from lockstep_agent.collector import AnyReading, Reading, is_servable
from lockstep_agent.jobs.job_snapshot import JobSnapshot
from lockstep_catalogue import agent

_log = logging.getLogger(__name__)
_LOG_SECONDS = 60.0
_MAX_LOGGED_JOBS = 10_000
_MAX_REASON_CHARACTERS = 300
_Result = TypeVar("_Result")


class JobGuard:
    """Runs the work on each job by itself, for all collectors; counts and logs what is skipped.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._skipped: Counter[str] = Counter()
        self._next_log_seconds: dict[str, float] = {}

    def begin(self, collector: str) -> None:
        """Announces a collector, so that its counter begins with 0."""
        self._skipped.setdefault(collector, 0)

    def run(
        self,
        collector: str,
        job: "JobSnapshot",
        work: Callable[["JobSnapshot"], Iterable[_Result]],
    ) -> tuple[_Result, ...]:
        """Results for one job, all or none."""
        try:
            return tuple(work(job))
        except Exception as error:  # noqa: BLE001  # a job's files cost no other job its readings
            self.skip(collector, job, f"{type(error).__name__}: {error}")
            return ()

    def servable(
        self, collector: str, job: "JobSnapshot", readings: tuple[AnyReading, ...]
    ) -> tuple[AnyReading, ...]:
        """The readings whose numbers can be served."""
        if all(map(is_servable, readings)):
            return readings
        bad = next(each for each in readings if not is_servable(each))
        self.skip(collector, job, f"{bad.metric.name} is no number that can be served")
        return tuple(filter(is_servable, readings))

    def skip(self, collector: str, job: "JobSnapshot", reason: str) -> None:
        """Counts a job, or a reading of it, that a collector leaves out."""
        with self._lock:
            self._skipped[collector] += 1
        self.log(job, f"{collector} skips it: {reason}")

    def log(self, job: "JobSnapshot", reason: str) -> None:
        """Logs a refusal that concerns a job, once a minute a job at most."""
        now = self._clock()
        with self._lock:
            if now < self._next_log_seconds.get(job.job_id, now):
                return
            if len(self._next_log_seconds) >= _MAX_LOGGED_JOBS:
                self._next_log_seconds.clear()
            self._next_log_seconds[job.job_id] = now + _LOG_SECONDS
        _log.warning(
            "job=%s owner=%d folder=%s reason=%r",
            job.job_id,
            job.owner,
            job.folder,
            reason[:_MAX_REASON_CHARACTERS],
        )

    def readings(self) -> Iterator[Reading]:
        """How often each collector has left a job out."""
        for collector, count in sorted(self._skipped.copy().items()):
            yield Reading(agent.JOBS_SKIPPED, (collector,), count)
