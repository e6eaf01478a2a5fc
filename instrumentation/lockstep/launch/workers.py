"""Watches the worker processes of one node and records how each of them ends.

A thread per worker waits for its end, so the order of deaths is exact. Torch's own agent polls
every 0.1 s, within which a whole gloo job dies.
"""

import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from subprocess import Popen
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from lockstep.identity.requeues import FIRST_ATTEMPT
from lockstep.launch.description import WorkersEnd, judge_end, num_gpus_of_node
from lockstep.launch.job import Job
from lockstep.launch.last_output import KeptLogsSpecs, OutputKeeper, RankOutput
from lockstep.launch.progress import ProgressWatch
from lockstep.patches.points import START_WORKERS, find_or_report
from lockstep_records.events.event import PREEMPTED, Event, append_event
from lockstep_records.files.jobs import page_path


def _wait_for(process: "Popen[bytes]") -> int:
    """Exit code of a worker, negative for a signal; returns at the moment of its end."""
    # WNOWAIT leaves the process for torch's agent to reap; if that was faster, there is none left.
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process.wait()


class _EndRecorder:
    """Writes a rank_ended event for each worker of an attempt, in the order of their ends."""

    def __init__(self, job: Path, job_id: str, progress: ProgressWatch) -> None:
        self._job, self._job_id, self._progress = job, job_id, progress
        self._last_end = 0.0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._failed_attempts: set[int] = set()
        self.exit_codes: list[int] = []
        self.attempt: int | None = None
        self.is_stopped = threading.Event()

    def watch(
        self,
        attempt: int,
        process_by_rank: "dict[int, Popen[bytes]]",
        outputs: dict[int, RankOutput],
    ) -> None:
        """Starts watching the workers of an attempt."""
        if self.attempt is not None:
            self._end_attempt(self.attempt)
        self.attempt = attempt
        started: dict[str, Any] = {"ranks": sorted(process_by_rank)}
        if num_gpus := num_gpus_of_node():
            started["num_gpus"] = num_gpus
        self._append("attempt_started", attempt, started)
        self.exit_codes = []
        for rank, process in process_by_rank.items():
            arguments = attempt, rank, process, outputs[rank]
            thread = threading.Thread(target=self._wait, args=arguments, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _end_attempt(self, attempt: int) -> None:
        """Writes the end of an attempt that is followed by another."""
        self.finish()  # the ends of all its ranks are evidence
        self.is_stopped.clear()
        end = WorkersEnd(attempt=attempt, exit_codes=tuple(self.exit_codes))
        fields = judge_end(self._job, end) | {"exit_code": 1}
        # The attempt was over with its last rank; the time since then is recovery.
        self._progress.finish(attempt, self._last_end)
        self._append("attempt_ended", attempt, fields, self._last_end)

    def _wait(self, attempt: int, rank: int, process: "Popen[bytes]", output: RankOutput) -> None:
        exit_code = _wait_for(process)
        # Whom a signal to the launcher ended did not fail.
        moment, was_stopped = time.time(), self.is_stopped.is_set()
        signal_name = signal.Signals(-exit_code).name if exit_code < 0 else None
        with self._lock:
            # Under the lock: exactly one worker of an attempt is the first to fail.
            failed = exit_code not in {0, PREEMPTED} and not was_stopped
            is_first = failed and attempt not in self._failed_attempts
            if is_first:
                self._failed_attempts.add(attempt)
            self.exit_codes.append(exit_code)
            error = output.end()
            fields = {
                "rank": rank,
                "pid": process.pid,
                "exit_code": exit_code,
                "signal": signal_name,
                "first": is_first,
            }
            if error is not None:
                fields["exception"] = str(error)
            self._last_end = max(self._last_end, moment)
            self._append("rank_ended", attempt, fields, moment)

    def finish(self, timeout_seconds: float = 5.0) -> None:
        """Waits until every end is written."""
        for thread in self._threads:
            thread.join(timeout_seconds)

    def _append(
        self, kind: str, attempt: int, fields: dict[str, Any], moment: float | None = None
    ) -> None:
        moment = time.time() if moment is None else moment
        event = Event(kind=kind, job_id=self._job_id, attempt=attempt, fields=fields, time=moment)
        append_event(self._job, event)


class _RecordingAgent(LocalElasticAgent):
    """Torch's agent for one node, which has the workers of each attempt watched."""

    def __init__(
        self,
        end_recorder: _EndRecorder,
        spec: WorkerSpec,
        keeper: OutputKeeper,
        job: Job,
        first_attempt: int,
    ) -> None:
        self._destinations = KeptLogsSpecs(
            keeper, job.log_folder or job.folder / "logs", self._page_of
        )
        super().__init__(spec, self._destinations)
        self._end_recorder, self._job = end_recorder, job
        self._first_attempt = self._attempt = first_attempt
        self.stop_time: float | None = None

    def _shutdown(self, *args: Any, **kwargs: Any) -> None:
        # Before the workers are stopped: what they do from now on is a consequence.
        self.stop_time = time.time()
        self._end_recorder.is_stopped.set()
        super()._shutdown(*args, **kwargs)

    def _page_of(self, rank: int) -> Path:
        return page_path(self._job.root, self._job.job_id, self._attempt, rank)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        first_attempt = agree_on_first_attempt(worker_group, self._first_attempt)
        os.environ[FIRST_ATTEMPT] = str(first_attempt)  # the workers inherit it
        # Torch counts restarts down and has no number of the attempt.
        restarts = worker_group.spec.max_restarts - self._remaining_restarts
        self._attempt = attempt = first_attempt + restarts
        pid_by_local_rank: dict[int, Any] = super()._start_workers(worker_group)
        # An entrypoint that is a program runs in a subprocess; only a function would be spawned.
        assert isinstance(self._pcontext, SubprocessContext)
        self._end_recorder.watch(
            attempt,
            {
                worker_group.workers[local_rank].global_rank: handler.proc
                for local_rank, handler in self._pcontext.subprocess_handlers.items()
            },
            self._destinations.outputs,
        )
        return pid_by_local_rank


def _worker_spec(job: Job) -> WorkerSpec:
    """What torch starts on this node, and where its nodes meet."""
    # torch.distributed.launcher.api does the same but accepts no agent class, and it reports
    # failures only when all restarts are spent.
    local_address = (job.local_address or None) if job.endpoint else "127.0.0.1"
    handler = get_rendezvous_handler(
        RendezvousParameters(
            backend="c10d",
            endpoint=job.endpoint or "localhost:0",
            run_id=job.job_id,
            min_nodes=job.nnodes,
            max_nodes=job.nnodes,
            local_addr=local_address,
            **job.rendezvous,
        )
    )
    return WorkerSpec(
        role="trainer",
        local_world_size=job.nproc_per_node,
        entrypoint=sys.executable,
        args=job.program,
        rdzv_handler=handler,
        max_restarts=job.max_restarts,
        local_addr=local_address,
    )


def run_workers(job: Job, progress: ProgressWatch, first_attempt: int = 0) -> WorkersEnd:
    """Runs the workers of this node to their end, restarts included."""
    find_or_report(START_WORKERS)
    spec = _worker_spec(job)
    end_recorder = _EndRecorder(job.folder, job.job_id, progress)
    signal_number: int | None = None
    keeper = OutputKeeper()
    agent = _RecordingAgent(end_recorder, spec, keeper, job, first_attempt)
    try:
        agent.run()
    except SignalException as error:
        signal_number = int(error.sigval)
    finally:
        spec.rdzv_handler.shutdown()
        end_recorder.finish()
        keeper.close()
    return WorkersEnd(
        attempt=first_attempt if end_recorder.attempt is None else end_recorder.attempt,
        exit_codes=tuple(end_recorder.exit_codes),
        signal_number=signal_number,
        stop_time=agent.stop_time,
    )


log = logging.getLogger("lockstep")
_WAIT = timedelta(seconds=30)


def agree_on_first_attempt(worker_group: WorkerGroup, own: int) -> int:
    """Highest number that a node counts on with, for all; ``own`` where they do not answer."""
    store, num_nodes = worker_group.store, worker_group.group_world_size or 1
    if store is None or num_nodes == 1:
        return own
    keys = [f"lockstep/first_attempt/{node}" for node in range(num_nodes)]
    try:
        store.set(keys[worker_group.group_rank or 0], str(own))
        store.wait(keys, _WAIT)
        return max(int(store.get(key)) for key in keys)
    except (RuntimeError, ValueError) as error:  # of torch's stores
        log.warning("nodes may count attempts differently, as one did not answer: %s", error)
        return own
