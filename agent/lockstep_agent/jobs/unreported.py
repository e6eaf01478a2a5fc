"""Events that nobody else writes: of jobs without our launcher, and of those that lost theirs.

Plain torchrun writes pages and no events, and a launcher that is killed writes no end. The agent
reads both from the pages. Ids follow from job, attempt and node, so that an agent that starts again
tells nothing twice.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import evidence_of
from lockstep_outcomes.progress.progress_events import Moments, ProgressEvents, moments_of
from lockstep_records.events.event import Event, finish_time, node_name, read_events, stable_id
from lockstep_records.files.jobs import Roots, list_attempts, list_jobs, pages_of
from lockstep_records.page.liveness import find_process
from lockstep_records.page.lock import holder_of
from lockstep_records.page.reader import Page

_log = logging.getLogger(__name__)
POLL_SECONDS = 5.0
# torchrun starts its ranks again within seconds, and after a rendezvous within a minute.
_GONE_SECONDS = 60.0
# A launcher that nobody can ask may wait for other nodes.
_UNKNOWN_LAUNCHER_SECONDS = 900.0
_LOG_SECONDS = 60.0
_PAGE_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
_PROC = Path("/proc")
_LAUNCHER_LOCK = "launcher.lock"
_STARTS = frozenset({"job_started", "attempt_started"})


@dataclass(slots=True)
class _Job:
    """What is known of a job from poll to poll.

    Attributes:
        gone_since: wall clock since which no process of it was seen; None while one runs.
        num_gpus: GPUs of the node that were last known to be allocated to it.
        next_log_seconds: wall clock from which on its next error is logged.
    """

    progress: ProgressEvents
    attempts: set[int] = field(default_factory=set)
    is_started: bool = False
    gone_since: float | None = None
    is_settled: bool = False
    num_gpus: int | None = None
    next_log_seconds: float = 0.0


class UnreportedJobs:
    """Watches the job folders of a node.

    Args:
        root: folder that holds ``jobs/``, or several.
        clock: wall clock, seconds since 1970.
        num_gpus_of: GPUs of this node that are allocated to a job; None where unknown.
        launcher_of: which of a job's launchers on this node has a folder.
    """

    def __init__(
        self,
        root: Roots,
        clock: Callable[[], float] = time.time,
        num_gpus_of: Callable[[str], int | None] = lambda _: None,
        launcher_of: Callable[[Path], str | None] = lambda _: None,
    ) -> None:
        self._root, self._clock = root, clock
        self._num_gpus_of, self._launcher_of = num_gpus_of, launcher_of
        self._jobs: dict[Path, _Job] = {}
        self._next_seconds = 0.0

    def poll(self) -> list[Event]:
        """What is new since the last call; looks every five seconds at most."""
        now = self._clock()
        if now < self._next_seconds:
            return []
        self._next_seconds = now + POLL_SECONDS
        folders = list_jobs(self._root)
        self._jobs = {
            path: self._jobs.get(path) or _Job(ProgressEvents(path.name, self._clock))
            for path in folders
        }
        events: list[Event] = []
        for folder, job in self._jobs.items():
            try:
                events += (
                    replace(event, launcher=self._launcher_of(folder))
                    for event in self._poll(folder, job, now)
                )
            except OSError:
                continue  # the folder is being removed, or is another user's
            except _PAGE_ERRORS as error:  # what its user wrote is its own harm alone
                if now >= job.next_log_seconds:
                    job.next_log_seconds = now + _LOG_SECONDS
                    _log.warning("unreported=fails job=%s reason=%r", folder.name, error)
        return events

    def _poll(self, folder: Path, job: _Job, now: float) -> Iterator[Event]:
        written = read_events(folder)
        attempts = list_attempts(folder)
        if not attempts or finish_time(written) is not None:
            # A job may be started again under its id: what was reported of it does not count then.
            job.is_settled = job.is_started = False
            return
        attempt = int(attempts[-1].name)
        if job.is_settled and attempt in job.attempts:
            return
        job.is_settled = False
        # No page speaks for another job.
        pages = [p for p in pages_of(attempts[-1]) if p.identity["job_id"] == folder.name]
        if not pages:
            return
        has_launcher = any(event.kind in _STARTS for event in written)
        num_gpus = self._num_gpus(folder.name) or job.num_gpus
        job.num_gpus = _none_granted(pages) if num_gpus is None else num_gpus
        if has_launcher:
            moments = moments_of(written, attempt)
        else:
            moments = Moments(begin=_begin(pages), num_gpus=job.num_gpus)
        if not has_launcher:
            yield from self._starts(job, pages, attempts)
        job.attempts.add(attempt)
        launcher_runs = _launcher_runs(folder) if has_launcher else False
        is_running = launcher_runs or any(find_process(page) is not None for page in pages)
        if is_running or not _is_long_gone(job, now, is_sure=launcher_runs is not None):
            job.gone_since = None if is_running else job.gone_since
            if not has_launcher:
                yield from job.progress.poll(pages, moments)
            return
        job.is_settled = True
        beats = (page.progress_wall_seconds for page in pages)
        over = max(*beats, *(event.time for event in written), 0.0)
        last = replace(moments, over=over)
        yield from job.progress.poll(pages, last, is_last=True)
        yield from self._ends(folder, pages[0], attempt, over)

    def _num_gpus(self, job_id: str) -> int | None:
        """GPUs of one of the job's pods on this node, which have equally many."""
        pods = [path for path, job in self._jobs.items() if not job.is_settled]
        of_node = self._num_gpus_of(job_id)
        return of_node and of_node // sum(path.name == job_id for path in pods)

    def _starts(self, job: _Job, pages: list[Page], attempts: list[Path]) -> Iterator[Event]:
        identity, attempt = pages[0].identity, int(attempts[-1].name)
        if not job.is_started:
            job.is_started = True
            fields: dict[str, Any] = {
                "world_size": identity["world_size"],
                "nproc_per_node": len(pages),
                "project": identity["project"] or None,
                "source": "pages",
            }
            stated = {name: value for name, value in fields.items() if value is not None}
            # A node that joins at a restart has seen no attempt before it.
            first = int(attempts[0].name)
            yield self._event("job_started", pages[0], first, stated, _begin(pages))
        if attempt not in job.attempts:
            ranks: dict[str, Any] = {"ranks": [int(page.identity["rank"]) for page in pages]}
            number = _number_of_start(attempts)
            yield self._event("attempt_started", pages[0], number, ranks, _begin(pages))

    def _ends(self, folder: Path, page: Page, attempt: int, over: float) -> Iterator[Event]:
        fields = {**classify(evidence_of(folder, attempt)).event_fields(), "source": "pages"}
        for kind in ("attempt_ended", "job_finished"):
            yield self._event(kind, page, attempt, fields, over)

    def _event(
        self, kind: str, page: Page, attempt: int, fields: dict[str, Any], moment: float
    ) -> Event:
        job_id, node = str(page.identity["job_id"]), node_name()
        born = page.identity["start_wall_ns"]
        return Event(
            kind=kind,
            job_id=job_id,
            attempt=attempt,
            fields=fields,
            time=moment,
            id=stable_id("pages", job_id, attempt, kind, node, born),
            node=node,
        )


def _none_granted(pages: list[Page]) -> int | None:
    """0 where Slurm gave a running rank no GPU, and no rank has one; None where unknown."""
    running = filter(None, map(find_process, pages))
    process = next((each.pid for each in running if each.pid is not None), None)
    if process is None or any(page.identity["gpu_uuid"] for page in pages):
        return None
    try:
        text = (_PROC / str(process) / "environ").read_bytes()
    except OSError:
        return None
    names = [entry.partition(b"=")[0] for entry in text.split(b"\0")]
    of_slurm = [name for name in names if name.startswith(b"SLURM_")]
    return 0 if of_slurm and not any(b"GPU" in name for name in of_slurm) else None


def _is_long_gone(job: _Job, now: float, *, is_sure: bool) -> bool:
    """Whether no process of the job has been seen for long enough."""
    job.gone_since = now if job.gone_since is None else job.gone_since
    limit = _GONE_SECONDS if is_sure else _UNKNOWN_LAUNCHER_SECONDS
    return now - job.gone_since >= limit


def _launcher_runs(folder: Path) -> bool | None:
    """Whether the launcher lives, by the lock that it holds; None where that cannot be known."""
    try:
        return holder_of(folder / _LAUNCHER_LOCK) is not None
    except OSError:
        return None


def _number_of_start(attempts: list[Path]) -> int:
    """Attempt that the newest launch belongs to: what follows a success is its next step.

    A batch script of Slurm starts several steps one after the other; none of them is a restart.
    """
    number = len(attempts) - 1
    while number and _ended_well(pages_of(attempts[number - 1])):
        number -= 1
    return int(attempts[number].name)


def _ended_well(pages: list[Page]) -> bool:
    return bool(pages) and all(page.phase == "done" for page in pages)


def _begin(pages: list[Page]) -> float:
    """When the first process of the ranks began, seconds since 1970."""
    births = (
        page.identity["start_wall_ns"] / 1e9 - (page.periodic["process_seconds"] or 0.0)
        for page in pages
    )
    return float(min(births))
