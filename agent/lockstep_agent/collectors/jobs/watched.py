"""Jobs without rank pages, as watches and /proc show them: ranks, pods, progress."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep_agent.collector import AnyReading, Reading, Tier, present
from lockstep_agent.jobs.watched_jobs import Watch, WatchedJob, WatchedJobs
from lockstep_agent.sources.job_processes import JobProcess
from lockstep_agent.sources.pods import Pod
from lockstep_catalogue import training as metrics
from lockstep_catalogue.labels import MESH, STATE
from lockstep_records.files.job_status import SeenJob, read_seen, write_seen
from lockstep_records.text.printable import drop_unprintable

_log = logging.getLogger(__name__)
_STUCK_SECONDS = 600.0
"""Of a run of the watch, from which on what it saw before it counts no more."""


class Watched:
    """Serves what a watch saw last; the watch runs in a thread that no collector waits for.

    Args:
        watch: whose jobs it serves, but for those of which another watch has more to say.
        jobs: of all watches.
        root: folder of jobs, in which ``lockstep jobs`` finds what was seen; None for none.
    """

    tier = Tier.TEN_SECONDS

    def __init__(
        self, watch: Watch[Any, Any], jobs: WatchedJobs, node: str, root: Path | None = None
    ) -> None:
        self.name = watch.name
        self._watch, self._jobs, self._root, self._was_refused = watch, jobs, root, False
        self._node = node
        self._thread: threading.Thread | None = None
        self._ended_seconds: float | None = None
        self._begun_seconds: float | None = None

    def collect(self) -> Iterator[AnyReading]:
        """As ``readings``; starts the watch.

        Raises:
            RuntimeError: the watch has ended by an error, and begins anew with the next run; or
                the kernel does not answer it, and then nothing is known of any job.
        """
        begun_seconds = self._begun_seconds
        if begun_seconds is not None and time.monotonic() > begun_seconds + _STUCK_SECONDS:
            self._watch.jobs = ()
            raise RuntimeError("the watch is stuck in a call")
        has_ended = self._thread is not None and not self._thread.is_alive()
        if self._thread is None or has_ended:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        yield from self.readings()
        if has_ended:
            raise RuntimeError("the watch had ended by an error; it runs again")

    def readings(self) -> Iterator[AnyReading]:
        """Ranks of jobs that tell nothing of themselves, and what is of the watch itself."""
        yield from self._watch.readings()
        for job in self._jobs.jobs:
            if not job.has_pages and job.seen_by == self.name:
                yield from self._job_readings(job)

    def _run(self) -> None:
        while True:
            # From the end of a run on, so that no socket is asked sooner; restarts keep it too.
            if self._ended_seconds is not None:
                next_seconds = self._ended_seconds + self._watch.poll_seconds
                time.sleep(max(next_seconds - time.monotonic(), 0.0))
            self._begun_seconds = time.monotonic()
            try:
                self._watch.run_once()
            finally:
                self._begun_seconds, self._ended_seconds = None, time.monotonic()
            self.write()

    def write(self) -> None:
        """Lists the jobs for commands of this node."""
        jobs = [_listed(job) for job in self._jobs.jobs if not job.has_pages]
        try:
            # Nothing is written on a node that has no such job.
            if self._root is not None and (jobs or read_seen(self._root)):
                write_seen(self._root, jobs)
        except OSError as error:
            if not self._was_refused:
                _log.warning("collector=%s state=unlisted reason=%r", self.name, str(error))
            self._was_refused = True

    def _job_readings(self, job: WatchedJob) -> Iterator[Reading]:
        labels = (self._jobs.cluster, job.job_id, self._node)
        yield Reading(metrics.JOB_SEEN, (*labels, job.seen_by, job.kind or "unasked"), 1)
        for state in STATE.values:
            count = len(job.processes) if state == "training" else 0
            yield Reading(metrics.RANKS, (*labels, state), count)
        for process in job.processes:
            if process.rank is not None:
                yield self._identity(job, process)
        collectives = Counter[str]()
        for rank, totals in job.totals.items():
            of_rank = (*labels[:2], str(rank))
            yield from present(metrics.LAST_PROGRESS, of_rank, totals.moved_seconds)
            yield from present(metrics.STEPS, of_rank, totals.steps)
            for phase, seconds in totals.phase_seconds.items():
                yield Reading(metrics.PHASE_SECONDS, (*of_rank, phase), seconds)
            collectives.update(totals.collectives)
        for kind, count in collectives.items():
            yield Reading(metrics.COLLECTIVES, (*labels, kind), count)

    def _identity(self, job: WatchedJob, process: JobProcess) -> Reading:
        pod = job.pods.get(process.pid, Pod())
        numbers = (process.local_rank, process.world_size)
        words = (
            "",
            self._node,
            *("" if number is None else str(number) for number in numbers),
            *("", ""),
            *map(drop_unprintable, (pod.namespace, pod.name, pod.container)),
            "",
            *("" for _ in MESH),
        )
        labels = (self._jobs.cluster, job.job_id, str(process.rank), *words)
        return Reading(metrics.RANK_INFO, labels, 1)


def _listed(job: WatchedJob) -> SeenJob:
    finding = job.finding.sentence if job.finding else "Whether it moves is unknown."
    sizes = [each.world_size for each in job.processes if each.world_size is not None]
    return SeenJob(
        job_id=job.job_id,
        seen_by=job.seen_by,
        ranks=len(job.processes),
        world_size=max(sizes, default=None),
        start_seconds=job.first_seconds,
        finding=finding,
    )
