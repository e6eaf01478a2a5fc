"""Jobs without rank pages, as NCCL's status socket and /proc show them: ranks, pods, launches."""

import threading
import time
from collections.abc import Callable, Iterator

from lockstep_agent.collector import AnyReading, Reading, Tier
from lockstep_agent.jobs.ras_watch import POLL_SECONDS, RasJob, RasWatch
from lockstep_agent.sources.nccl_processes import NcclProcess
from lockstep_agent.sources.pods import Pod
from lockstep_catalogue import agent
from lockstep_catalogue import training as metrics
from lockstep_catalogue.labels import MESH, STATE
from lockstep_records.text.printable import drop_unprintable


class Ras:
    """Serves what the watch saw last; the watch runs in a thread that no collector waits for.

    Args:
        report: takes the jobs after each run of the watch, in its thread.
    """

    name = "ras"
    tier = Tier.TEN_SECONDS

    def __init__(
        self,
        watch: RasWatch,
        node: str,
        report: Callable[[tuple[RasJob, ...]], None] = lambda _: None,
    ) -> None:
        self._watch, self._report = watch, report
        self._node = node
        self._thread: threading.Thread | None = None
        self._start_seconds = -POLL_SECONDS

    def collect(self) -> Iterator[AnyReading]:
        """As ``readings``; starts the watch.

        Raises:
            RuntimeError: the watch has ended by an error; it begins anew with the next run.
        """
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
            # Restarts keep the pause too.
            pause_seconds = self._start_seconds + POLL_SECONDS - time.monotonic()
            time.sleep(max(pause_seconds, 0.0))
            self._start_seconds = time.monotonic()
            self._watch.run_once()
            self._report(self._watch.jobs)

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
