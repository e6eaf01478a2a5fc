"""Jobs without rank pages, as NCCL's status socket and /proc show them: ranks, pods, launches."""

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from lockstep_agent.collector import AnyReading, Reading, Tier
from lockstep_agent.jobs.ras_watch import POLL_SECONDS, STUCK_SECONDS, RasJob, RasWatch
from lockstep_agent.sources.nccl_processes import NcclProcess
from lockstep_agent.sources.pods import Pod
from lockstep_catalogue import agent
from lockstep_catalogue import training as metrics
from lockstep_catalogue.labels import MESH, STATE
from lockstep_records.files.seen_jobs import SeenJob, read_seen, write_seen
from lockstep_records.text.printable import drop_unprintable

_log = logging.getLogger(__name__)


class Ras:
    """Serves what the watch saw last; the watch runs in a thread that no collector waits for.

    Args:
        root: folder of jobs, in which ``lockstep jobs`` finds what was seen; None for none.
    """

    name = "ras"
    tier = Tier.TEN_SECONDS

    def __init__(
        self,
        watch: RasWatch,
        node: str,
        root: Path | None = None,
    ) -> None:
        self._watch, self._root, self._was_refused = watch, root, False
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
        if begun_seconds is not None and time.monotonic() > begun_seconds + STUCK_SECONDS:
            self._watch.jobs = ()
            raise RuntimeError("the watch of NCCL's status sockets is stuck in a call")
        has_ended = self._thread is not None and not self._thread.is_alive()
        if self._thread is None or has_ended:
            self._thread = threading.Thread(target=self._run, name="ras-watch", daemon=True)
            self._thread.start()
        yield from self.readings()
        if has_ended:
            raise RuntimeError("the watch of NCCL's status sockets had ended; it runs again")

    def readings(self) -> Iterator[AnyReading]:
        """Ranks of jobs that nobody else tells of, and what came of the questions."""
        for outcome in agent.RAS_OUTCOME.values:
            yield Reading(agent.RAS_QUESTIONS, (outcome,), self._watch.outcomes[outcome])
        for job in self._watch.jobs:
            if not job.has_pages:
                yield from self._job_readings(job)

    def _run(self) -> None:
        while True:
            # From the end of a run on, so that no socket is asked sooner; restarts keep it too.
            if self._ended_seconds is not None:
                time.sleep(max(self._ended_seconds + POLL_SECONDS - time.monotonic(), 0.0))
            self._begun_seconds = time.monotonic()
            try:
                self._watch.run_once()
            finally:
                self._begun_seconds, self._ended_seconds = None, time.monotonic()
            self.write()

    def write(self) -> None:
        """Lists the jobs for commands of this node."""
        jobs = [_listed(job) for job in self._watch.jobs if not job.has_pages]
        try:
            # Nothing is written on a node that has no such job.
            if self._root is not None and (jobs or read_seen(self._root)):
                write_seen(self._root, jobs)
        except OSError as error:
            if not self._was_refused:
                _log.warning("collector=ras state=unlisted reason=%r", str(error))
            self._was_refused = True

    def _job_readings(self, job: RasJob) -> Iterator[Reading]:
        labels = (self._watch.cluster, job.job_id, self._node)
        launches = job.finding.kind if job.finding else "unasked"
        yield Reading(metrics.JOB_SEEN, (*labels, "ras", launches), 1)
        for state in STATE.values:
            count = len(job.processes) if state == "training" else 0
            yield Reading(metrics.RANKS, (*labels, state), count)
        for process in job.processes:
            if process.rank is not None:
                yield self._identity(job, process)

    def _identity(self, job: RasJob, process: NcclProcess) -> Reading:
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
        labels = (self._watch.cluster, job.job_id, str(process.rank), *words)
        return Reading(metrics.RANK_INFO, labels, 1)


def _listed(job: RasJob) -> SeenJob:
    finding = job.finding.sentence if job.finding else "It was not asked, or did not answer."
    sizes = [each.world_size for each in job.processes if each.world_size is not None]
    return SeenJob(
        job_id=job.job_id,
        seen_by="ras",
        ranks=len(job.processes),
        world_size=max(sizes, default=None),
        start_seconds=job.first_seconds,
        finding=finding,
    )
