"""Events of jobs by Slurm's accounting, from a table or followed by polls."""

import functools
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from lockstep_ledger.importers.scheduler_events import REPEAT_SECONDS, JobEvents
from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import Evidence
from lockstep_outcomes.rules import status_sign
from lockstep_outcomes.slurm import (
    Partition,
    SlurmJob,
    SlurmRun,
    ask_sacct,
    jobs,
    read_partitions,
    rows,
    tasks_of,
)
from lockstep_records.events.event import Event, stable_id
from lockstep_records.events.kinds import MAX_NAME, MAX_TEXT
from lockstep_records.file_access.atomic_file import write_atomically
from lockstep_records.text.host_lists import split_hosts
from lockstep_records.text.printable import printable

_WENT_BACK = frozenset({"REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_OWN_WORD = frozenset({"FAILED", "SPECIAL_EXIT"})
_OUT_OF_MEMORY = 125
"""What Slurm gives for the signal of a step that its cgroup ended; the script says FAILED alone."""


def read_sacct(
    lines: Iterable[bytes | str],
    cluster: str,
    *,
    zone: tzinfo = UTC,
    warn: Callable[[str], None] = lambda _: None,
    partitions: Mapping[str, Partition] = MappingProxyType({}),
) -> Iterator[Event]:
    """Events of all jobs of a table; ValueError where the text is none.

    The lines are output of sacct with a header, steps and requeues included or not, with times in
    ``zone``; ``warn`` gets a sentence for each row that is left out.
    """
    table = jobs(rows(lines, warn=warn), zone, partitions)
    found = [each for job in table for each in tasks_of(job)]
    all_rows = [row for job in found for row in (*job.earlier, job)]
    times = [time for row in all_rows for time in (row.submit, row.start, row.end) if time]
    printed = max(times, default=0.0)
    for job in found:
        yield from events_of_job(job, cluster)
        if job.start is not None and job.end is None and job.start < printed:
            yield later_word(job, cluster, printed)


def description_of(job: SlurmJob) -> dict[str, object]:
    """What Slurm says of a job now, as fields of an event."""
    return {
        # A name that no event may hold would keep its job from being heard of, and from being paid.
        "name": job.name and printable(job.name, MAX_NAME),
        "user": job.user,
        "uid": job.uid,
        # A job that waits for any of several partitions is in none of them.
        "queue": None if "," in (job.partition or "") else job.partition,
        "project": job.account,
        "job_class": job.qos,
        "time_limit_seconds": job.time_limit_seconds,
        "nodes": _nodes_of(job),
        "aliases": [f"slurm:{job.cluster}:{job.job_id}"] if job.cluster else None,
        "source": "slurm",
    }


def events_of_job(job: SlurmJob, cluster: str) -> Iterator[Event]:
    """Submission, starts, sizes, requeues and end of a job, as far as its rows tell them."""
    events = JobEvents(source="slurm", job_id=job.job_id, cluster=_slurm_of(job, cluster))
    described = description_of(job)
    # Slurm writes a requeue's time over that of the submission, in the newest row of a job.
    submits = [row.submit for row in (*job.earlier, job) if row.submit]
    starts = [row.start for row in (*job.earlier, job) if row.start]
    runs = job.runs
    if submits:
        submitted = min([*submits, *starts])
        size = described | _size_of(runs[-1][0])
        yield events.event("job_submitted", submitted, f"submit {submitted:.0f}", size)
    for number, sizes in enumerate(runs):
        first, last = sizes[0], sizes[-1]
        if first.start is not None:
            start = described | _size_of(first) | _eligible(first)
            yield events.event("job_started", first.start, first.start, start, number)
            yield from _resized(events, sizes, number)
            yield from _parts(events, sizes, number)
        has_left = last is not job or job.state in _WENT_BACK
        if last.end is not None and has_left:
            yield from _requeued(events, first.start, last.end, last.state, number)
    if job.end is None or job.state in _WENT_BACK:
        return
    first = runs[-1][0]
    # A script may end well after a step that did not; a signal is a negative status. It is of all
    # runs of the job: a requeue's own signal among them.
    step_status = -job.step_signal if job.step_signal else job.step_exit_code
    counts = job.state == "COMPLETED" and len(runs) == 1
    fields = _judge(_evidence(job)) | {"exit_code": (counts and step_status) or job.exit_code}
    if job.cancelled_by is not None:
        fields["reason"] = f"It was cancelled by user {job.cancelled_by}."
    end = max(job.end, first.start or 0.0)
    if end > job.end:
        fields["disagrees"] = {"ended": job.end}
    # Without a start the submission tells ends in the queue apart.
    begin = job.submit if first.start is None else first.start
    yield events.event("job_finished", end, begin, fields, len(runs) - 1)


def later_word(job: SlurmJob, cluster: str, time: float) -> Event:
    """What Slurm says of a job that was described otherwise before, or that still runs."""
    events = JobEvents(source="slurm", job_id=job.job_id, cluster=_slurm_of(job, cluster))
    described = description_of(job)
    return events.event("job_submitted", time, f"word {time:.0f} {described}", described)


def _slurm_of(job: SlurmJob, cluster: str) -> str:
    """The ledger's cluster, and Slurm's, of which there may be two with the same numbers."""
    return f"{cluster} {job.cluster or ''}"


def _size_of(row: SlurmRun) -> dict[str, object]:
    """Nodes and GPUs of a row; a number that nobody states is none, and not 0."""
    source = row.gpus_source or None
    stated = row.gpus_stated and {"num_gpus": row.gpus_stated}
    return {"num_nodes": row.nodes, "num_gpus": row.gpus, "gpu_model": row.gpu_model,
            "gpus_source": source, "nodes": _nodes_of(row), "disagrees": stated}  # fmt: skip


def _nodes_of(row: SlurmRun) -> list[str] | None:
    return [part for part in split_hosts(row.hosts) if len(part) <= MAX_TEXT] or None


def _eligible(row: SlurmRun) -> dict[str, float]:
    if row.eligible is None or row.start is None or row.eligible == row.submit:
        return {}
    return {"eligible_time": min(row.eligible, row.start)}


def _resized(events: JobEvents, sizes: Sequence[SlurmRun], number: int) -> Iterator[Event]:
    """The sizes of a run after its first; of rows that overlap the newer one holds."""
    for before, row in pairwise(sizes):
        # A job that has given all its nodes away has no GPUs, whatever it had asked for.
        size: dict[str, object] = _size_of(row) if row.start else {"num_nodes": 0, "num_gpus": 0}
        time = row.start or before.end
        if time is None or size == _size_of(before):
            continue
        if before.state == "RESIZING" and before.end is not None and before.end > time:
            size |= {"disagrees": {"num_gpus": before.gpus}}
        yield events.event("job_submitted", time, f"size {time:.0f} {size}", size, number)


def _parts(events: JobEvents, sizes: Sequence[SlurmRun], number: int) -> Iterator[Event]:
    held: dict[str, float] = {}
    for row in sizes if any(row.models for row in sizes) else ():
        models: dict[str, float] = dict(row.models) or {row.gpu_model or "": row.gpus or 0}
        begin = row.start or 0.0
        for model in sorted(held.keys() | models.keys()) if begin else ():
            count = models.get(model, 0)
            if count != held.get(model):
                part = {"part": model or "gpu", "gpu_model": model or None, "num_gpus": count}
                identity = f"{model} {begin}"
                yield events.event("resources_allocated", begin, identity, part, number)
        held = models


@functools.lru_cache(maxsize=1000)
def _judge(evidence: Evidence) -> dict[str, Any]:
    """Fields of an end; few words of Slurm end thousands of jobs."""
    return classify(evidence).event_fields()


def _requeued(
    events: JobEvents, start: float | None, end: float, state: str, number: int
) -> Iterator[Event]:
    judged = _judge(Evidence(scheduler=(state,)))
    yield events.event("job_finished", end, start, judged, number)
    reason = {"reason": state, "restart_count": number + 1}
    yield events.event("job_requeued", end, start, reason, number)


def _evidence(job: SlurmJob) -> Evidence:
    """The state, or what the exit status of the batch script tells better than FAILED does."""
    if job.state in _OWN_WORD and job.step_signal == _OUT_OF_MEMORY:
        return Evidence(scheduler=("OUT_OF_MEMORY",))
    if job.state in _OWN_WORD and (job.exit_code or job.signal):
        sign = status_sign(-job.signal if job.signal else job.exit_code or 0)
        if sign not in {"exit", "exit_ok"}:
            return Evidence(reported=(sign,))
    return Evidence(scheduler=(job.state,))


# slurmctld tells slurmdbd later what it could not, with times that lie before the last poll.
_OVERLAP_SECONDS = _FIRST_SECONDS = 86_400.0
# sacct leaves out what becomes eligible after the period: jobs with --begin.
_AHEAD_SECONDS = 366 * 86_400.0
_CLOCK_SECONDS, _COMPLETION_SECONDS = 2.0, 60.0
_IDS_AT_ONCE = 500
_ASK_TIMEOUT_SECONDS = 20.0


class KnownJob(msgspec.Struct):
    """What was sent of a job.

    Attributes:
        sent: ids of events, shortened.
        word: digest of what Slurm said of it.
        repeated: when the feed last said that it still runs.
    """

    sent: set[str] = set()
    word: str = ""
    end: float | None = None
    is_missing: bool = False
    repeated: float = 0.0


class FeedState(msgspec.Struct):
    """Until when a feed has asked, and the jobs that are open or ended lately.

    Attributes:
        queued: when squeue last listed a job that accounting did not know yet, by id. slurmctld
            tells accounting of a waiting job seconds later, and one that is cancelled before it is
            eligible lies in no period.
    """

    until: float
    jobs: dict[str, KnownJob] = {}
    queued: dict[str, float] = {}
    version: Literal[1] = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Jobs that are fed: of these partitions (all where empty), and those without a GPU too."""

    partitions: frozenset[str] = frozenset()
    has_cpu_jobs: bool = False

    def takes(self, job: SlurmJob) -> bool:
        """Whether a job is fed; of an array that waits only the tasks are jobs, once they start."""
        # A number that nobody knows may be any.
        is_used = self.has_cpu_jobs or any(run.gpus != 0 for run in (*job.earlier, job))
        queues = frozenset((job.partition or "").split(","))
        is_chosen = not self.partitions or bool(queues & self.partitions)
        return is_used and is_chosen and "[" not in job.job_id


class SlurmFeed:
    """The feed of one Slurm; ``warn`` gets a sentence for each thing that is left out.

    Args:
        state: file that remembers where the last poll ended and which jobs are open.
        since_seconds: from when on jobs are told, again too; None goes on as the file says, and
            begins a day ago without it.
        warn: gets sentences.
        selection, cluster: of the jobs.

    Attributes:
        answered: events that the ledger took and refused of the poll before.
    """

    def __init__(
        self,
        state: Path,
        since_seconds: float | None,
        selection: Selection,
        warn: Callable[[str], None],
        cluster: str,
    ) -> None:
        self._path, self._selection, self.warn = state, selection, warn
        self._cluster = cluster
        self._read: dict[str, int] = {}
        self._state = self._load()
        if since_seconds is not None:
            self._state.until = min(self._state.until, since_seconds)
        self.num_rows = 0
        self.answered: dict[str, int] = {}

    def poll(self, now_seconds: float) -> Iterator[Event]:
        """What is new, sent once ``commit`` is called; NoAccountingError where Slurm has none.

        After a SubprocessError of sacct a later call reaches back as far.
        """
        begin, end = max(0.0, self._state.until - _OVERLAP_SECONDS), now_seconds + _AHEAD_SECONDS
        period = (f"--starttime={_slurm_time(begin)}", f"--endtime={_slurm_time(end)}")
        partitions = read_partitions(_ask("sinfo", "--format=%R|%h|%G|%c"))
        ask = functools.partial(ask_sacct, warn=self.warn, partitions=partitions)
        found = {job.job_id: job for job in ask(period)}
        open_ids = {name for name, entry in self._state.jobs.items() if entry.end is None}
        # Jobs that are held or depend on others are in the queue and in no period.
        waiting_ids = _ask("squeue", "--noheader", "--states=PENDING", "--format=%A")
        queued = self._state.queued | dict.fromkeys(waiting_ids, now_seconds)
        other_ids = sorted(open_ids.union(queued) - found.keys())
        for first in range(0, len(other_ids), _IDS_AT_ONCE):
            some = ",".join(other_ids[first : first + _IDS_AT_ONCE])
            found |= {job.job_id: job for job in ask(("--jobs", some))}
        self._note_missing(open_ids - found.keys())
        answered = found.keys() | {name.partition("_")[0] for name in found}
        self._state.queued = {
            name: seen
            for name, seen in queued.items()
            if name not in answered and seen > now_seconds - _FIRST_SECONDS
        }
        self.num_rows = len(found)
        for job in found.values():
            begin, is_eligible = job.start or 0.0, job.eligible is not None
            # Until slurmctld tells of a job its row is a step's, without GPUs and other nodes.
            is_complete = (
                job.start is None or is_eligible or now_seconds - begin > _COMPLETION_SECONDS
            )
            if is_complete and (self._selection.takes(job) or job.job_id in self._state.jobs):
                # An end that is still to come by this clock waits until it has.
                is_ahead = job.end is not None and job.end > now_seconds + _CLOCK_SECONDS
                yield from self._news(replace(job, end=None) if is_ahead else job, now_seconds)
        self._state.until = now_seconds

    def commit(self) -> None:
        """Remembers that everything was sent."""
        horizon = self._state.until - 2 * _OVERLAP_SECONDS
        self._state.jobs = {
            name: entry
            for name, entry in self._state.jobs.items()
            if entry.end is None or entry.end > horizon
        }
        self._read = {name: row for name, row in self._read.items() if name in self._state.jobs}
        write_atomically(self._path, msgspec.json.encode(self._state), mode=0o600)

    def _news(self, job: SlurmJob, now_seconds: float) -> Iterator[Event]:
        row_before, self._read[job.job_id] = self._read.get(job.job_id), hash(job)
        entry = self._state.jobs.setdefault(job.job_id, KnownJob())
        runs_on = job.start is not None and job.end is None
        if runs_on and now_seconds - max(entry.repeated, job.start or 0.0) >= REPEAT_SECONDS:
            entry.repeated = now_seconds
            yield later_word(job, self._cluster, now_seconds)
        if row_before == hash(job):
            return
        word = stable_id(*sorted(description_of(job).items()))[:16]
        is_new_word, entry.word = entry.word not in {"", word}, word
        news = [
            event for event in events_of_job(job, self._cluster) if event.id[:16] not in entry.sent
        ]
        # A start says it anyway.
        if is_new_word and not any(event.kind == "job_started" for event in news):
            news.append(later_word(job, self._cluster, min(now_seconds, job.end or now_seconds)))
        entry.sent |= {event.id[:16] for event in news}
        entry.end, entry.is_missing = job.end, False
        yield from sorted(news, key=lambda event: event.time)

    def _note_missing(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            entry = self._state.jobs[name]
            if not entry.is_missing:
                self.warn(
                    f"accounting does not know job {name} any more (PurgeJobAfter); its end"
                    " is not told"
                )
            entry.is_missing = True

    def _load(self) -> FeedState:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=FeedState)
        except FileNotFoundError:
            return FeedState(time.time() - _FIRST_SECONDS)
        except (OSError, msgspec.DecodeError) as error:
            raise ValueError(
                f"--state {self._path} is not the state of a feed ({error}); remove it, and give"
                " --since the time from which on jobs are to be told again"
            ) from error


def list_partitions() -> list[str]:
    """Names of Slurm's partitions; empty where it does not say."""
    return sorted(set(_ask("sinfo", "--noheader", "--format=%R")))


def _slurm_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _ask(*command: str) -> list[str]:
    """Words that a program of Slurm prints; none where slurmctld does not answer."""
    try:
        printed = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_ASK_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return printed.stdout.split() if printed.returncode == 0 else []
