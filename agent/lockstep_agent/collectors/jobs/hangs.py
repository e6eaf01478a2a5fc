"""Hangs of jobs, judged from their pages, however started, and without pages from what watches see.

The rule is the one of ``lockstep run`` (``lockstep_outcomes.progress.hangs``); here it works for
ranks that plain torchrun or a batch system started.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep_agent.collector import AnyReading, Reading, Tier
from lockstep_agent.jobs.job_snapshot import JobSnapshot
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.jobs.watched_jobs import WatchedJob, WatchedJobs
from lockstep_agent.recent_events import RecentEvents
from lockstep_catalogue import training as metrics
from lockstep_outcomes.progress.hangs import HangTimeouts, find_hang, switched_timeouts
from lockstep_outcomes.progress.missing import FINISHED, GONE, RankState, rank_words
from lockstep_records.page.reader import Page

_log = logging.getLogger(__name__)
_MAX_NAMED_RANKS = 8  # a hang of a node with more ranks stops most of them at the same place
_GONE, _UNKNOWN = "gone", "unknown"
_WORDS = ("named", "why", "evidence")
_EVIDENCE = {
    "behind": "behind_in_launches_by_ras",
    "ahead": "alone_ahead_in_launches_by_ras",
    "another": "another_collective_by_ras",
    "silent": "silent_to_ras",
    "dead": "silent_to_ras",
}
_SOURCES = {"ras": "NCCL's status socket", "inspector": "the files of NCCL's Inspector"}


@dataclass(frozen=True, kw_only=True, slots=True)
class JobHang:
    """A hang of a job on this node.

    Attributes:
        hung: ranks that make no progress, in the order in which they stopped.
        missing: ranks that the others wait for, with node, phase, ``gone`` or ``unknown``, and
            communicator, empty where pages name them.
        named: a clause on these.
        why: the evidence for it; ``evidence`` is the first of it, as a label.
        limit_seconds: time without progress from which on these ranks hang.
        since_seconds: wall clock of the last progress of the rank that stopped first.
    """

    hung: tuple[RankState, ...]
    missing: tuple[tuple[str, str, str, str], ...]
    named: str
    why: str
    evidence: str
    limit_seconds: float
    attempt: int
    since_seconds: float


class Hangs:
    """Judges every job on the node.

    A rank whose process has ended does not hang, and others may wait for it. A job none of whose
    ranks run does not hang either. The switches of a job may set a time-out of its own.

    Args:
        timeouts: of ranks that have none of their own; one of 0 in steps judges none of those.
        recent: where hangs are published as events.
        watched: jobs without pages.
        clock_ns: monotonic clock of this machine, which is that of the pages.
    """

    name = "hangs"
    tier = Tier.TEN_SECONDS

    def __init__(
        self,
        pages: PageStore,
        node: str,
        procfs: Path,
        timeouts: HangTimeouts,
        *,
        recent: RecentEvents | None = None,
        watched: WatchedJobs | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._pages, self._node, self._procfs = pages, node, procfs
        self._timeouts, self._clock_ns = timeouts, clock_ns
        self._open_events: dict[str, dict[str, Any]] = {}
        self.recent, self._watched = recent or RecentEvents(), watched or WatchedJobs(())

    def collect(self) -> Iterator[AnyReading]:
        """Number of hung ranks of each job, the first to stop, and those the others wait for."""
        yield from self._pages.readings(self.name, self._job_readings)
        followed = {job.job_id for job in self._pages.jobs()}
        for job in self._watched.jobs:
            kind = "unseen" if job.has_pages else job.kind
            hang = judge_launches(job, self._node) if kind == "hang" else None
            # Where nothing is known no series says that all is well.
            if kind in {"hang", "moving"}:
                followed.add(job.job_id)
                yield from self._readings_of(self._watched.cluster, job.job_id, hang)
        for job_id in set(self._open_events) - followed:
            self._end_event(job_id)

    def _job_readings(self, job: JobSnapshot) -> Iterator[AnyReading]:
        timeouts = switched_timeouts(job.folder, self._timeouts)
        judged = [page for page in job.newest_pages() if not timeouts.apply_page(page).is_off]
        pages = job.newest_pages() if judged else []
        running = {page.identity["rank"] for page in pages if job.is_running(page)}
        if not running:
            self._end_event(job.job_id)
            return
        hang = self._judge(job, pages, running, timeouts)
        yield from self._readings_of(job.cluster, job.job_id, hang)

    def _readings_of(self, cluster: str, job_id: str, hang: JobHang | None) -> Iterator[AnyReading]:
        labels = (cluster, job_id, self._node)
        if hang is None:
            yield Reading(metrics.HUNG_RANKS, labels, 0)
            self._end_event(job_id)
            return
        yield Reading(metrics.HUNG_RANKS, labels, len(hang.hung))
        self._update_event(job_id, labels, hang)
        first = hang.hung[0]
        first_labels = (*labels, str(first.rank), first.phase)
        yield Reading(metrics.HANG_FIRST, first_labels, first.idle_seconds)
        for rank, node, phase, communicator in hang.missing[:_MAX_NAMED_RANKS]:
            missing = (cluster, job_id, node, rank, phase, hang.evidence, communicator)
            yield Reading(metrics.HANG_MISSING, missing, 1)

    def _judge(
        self, job: JobSnapshot, pages: list[Page], running: set[int], timeouts: HangTimeouts
    ) -> JobHang | None:
        hang = find_hang(pages, self._clock_ns(), timeouts, self._procfs, job.process)
        hung = [rank for rank in hang.ranks if rank.rank in running] if hang else []
        if not hang or not hung:
            return None
        hung.sort(key=lambda rank: -rank.idle_seconds)
        found = hang.missing
        gone = {s.rank for s in hang.states if s.process == GONE and s.phase != FINISHED}
        phases = {s.rank: _GONE if s.rank in gone else s.phase for s in hang.states}
        first = next(page for page in pages if page.identity["rank"] == hung[0].rank)
        by_pages = JobHang(
            hung=tuple(hung),
            missing=tuple((str(rank), self._node, phases[rank], "") for rank in found.ranks),
            named=f"the others wait for {rank_words(found.ranks)}" if found.ranks else "",
            why=found.why,
            evidence=found.evidence,
            limit_seconds=hang.limit_seconds,
            attempt=first.identity["attempt"],
            since_seconds=first.progress_wall_seconds,
        )
        return self._with_launches(by_pages, job)

    def _with_launches(self, hang: JobHang, job: JobSnapshot) -> JobHang:
        """The hang with whom NCCL's status socket names, where the pages of this node name nobody.

        Where both name ranks, and others, that is shown.
        """
        for seen in self._watched.jobs:
            is_same = (seen.job_id, seen.user) == (job.job_id, job.owner)
            if not is_same or seen.kind != "hang":
                continue
            found = judge_launches(seen, self._node)
            if not found.missing:
                continue
            if not hang.missing:
                words = {name: getattr(found, name) for name in _WORDS}
                return replace(hang, missing=found.missing, **words)
            if {rank for rank, *_ in found.missing} != {rank for rank, *_ in hang.missing}:
                why = f"{hang.why}; NCCL's status socket names others: {found.named}"
                return replace(hang, why=why)
        return hang

    def _update_event(self, job_id: str, labels: tuple[str, ...], hang: JobHang) -> None:
        """Keeps the hang's event up to date; the begin of a hang is logged once."""
        event = _event(labels, hang)
        open_event = self._open_events.get(job_id)
        if open_event is not None:
            open_event["messages"] += 1
            open_event |= {key: event[key] for key in ("facts", "text", "last_seconds")}
        else:
            self._open_events[job_id] = event
            self.recent.add(event)
            _log.warning("job=%s state=hung %s", job_id, event["text"])
        self.recent.publish()

    def _end_event(self, job_id: str) -> None:
        event = self._open_events.pop(job_id, None)
        if event is not None:
            event["facts"] = event["facts"] | {"lasts": "no"}
            self.recent.publish()
            _log.info("job=%s state=hangs_no_more", job_id)


def judge_launches(job: WatchedJob, node: str) -> JobHang:
    """The hang of a job that only a watch shows; the ranks of this node wait in it."""
    finding = job.finding
    assert finding is not None, "a hang is found by a watch"
    missing, late_here = [], set[int]()
    for late in finding.late:
        host, pid = late.process.host, late.process.pid
        here = next((each for each in job.processes if each.is_at(host, pid)), None)
        rank = f"{late.rank} of {late.communicator}" if late.communicator else _UNKNOWN
        rank = str(late.rank) if late.is_of_job else rank
        if here is not None and here.rank is not None and late.is_of_job:
            rank = str(here.rank)
            late_here.add(here.rank)
        where = node if here else host or _UNKNOWN
        missing.append((rank, where, _UNKNOWN, late.communicator))
    ranks = [each.rank or 0 for each in job.processes] or [late.rank for late in finding.late]
    return JobHang(
        hung=tuple(
            RankState(rank=rank, phase=_UNKNOWN, idle_seconds=finding.seconds)
            for rank in sorted(ranks, key=lambda rank: (rank not in late_here, rank))
        ),
        missing=tuple(missing),
        named=finding.named,
        why=f"{finding.why} by {_SOURCES[job.seen_by]}",
        evidence=_EVIDENCE[finding.late[0].why] if finding.late else "",
        limit_seconds=job.limit_seconds,
        attempt=0,
        since_seconds=job.answered_seconds - finding.seconds,
    )


def _event(labels: tuple[str, ...], hang: JobHang) -> dict[str, Any]:
    """A hang in the form of the incidents of the logs.

    Its id follows from the pages alone, so that it is the same after a restart of the agent.
    """
    first = hang.hung[0]
    ranks = ", ".join(
        f"rank {rank.rank}" + (f" in {rank.phase}" if rank.phase != _UNKNOWN else "")
        for rank in hang.hung[:_MAX_NAMED_RANKS]
    )
    missing = ", ".join(rank for rank, *_ in hang.missing[:_MAX_NAMED_RANKS])
    cause = ", ".join(filter(None, (hang.named, hang.why)))
    return {
        "id": f"hang/{labels[1]}/{hang.attempt}/{hang.since_seconds:.3f}",
        "log": "ranks",
        "metric": metrics.HUNG_RANKS.name,
        "labels": dict(zip(metrics.HUNG_RANKS.label_names, labels, strict=True)),
        "facts": {
            "attempt": str(hang.attempt),
            "first": str(first.rank),
            "first_standing": first.phase,
            "first_process": first.process or "",
            "hung": str(len(hang.hung)),
            "missing": missing,
            "why": hang.why,
            "limit_seconds": f"{hang.limit_seconds:g}",
            "lasts": "yes",
        },
        "text": f"no progress: {ranks}; {cause}",
        "first_seconds": hang.since_seconds,
        "last_seconds": hang.since_seconds + first.idle_seconds,
        "messages": 1,
        "counted": True,
    }
