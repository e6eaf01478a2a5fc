"""Reads the Inspector's JSON of all ranks of a job: steps are the period of its collectives.

An operation takes from the begin of its kernel to its end, so it contains the wait for whoever came
last, and the late rank has the shortest ones. What a rank does outside of all operations is its own
work; no clock is compared for that. Clocks only order operations: those of a host by a trace where
there is one, else by the moments at which operations were written.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from lockstep_outcomes.progress.launch_finding import LateRank, LaunchFinding
from lockstep_records.file_access.compressed import line_blocks
from lockstep_records.nccl.inspector import (
    FILE_NAME,
    Batch,
    Communicator,
    Family,
    InspectorFile,
    ended,
)
from lockstep_records.nccl.ras_answer import ProcessDevice
from lockstep_records.text.printable import printable
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.files import files_of, head, holds_any
from lockstep_reports.readers.inspector_steps import (
    FoundSteps,
    Operations,
    TooFewError,
    find_steps,
    no_steps,
)
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import MAX_WORLD_SIZE, Member, Steps, timed_steps
from lockstep_reports.wording import duration, list_ranks, percent, plural

MAX_BYTES = 1 << 33
_SILENT_SECONDS = 120.0
"""Without a record, from which on a job may hang; its dumps come every few seconds."""
# A rank may complete these before others have come: elsewhere one that is through proves that all
# have come, and a count that lacks is a record that was not written.
_ROOTED = frozenset({"Broadcast", "Reduce", "Scatter", "Gather"})
_MAX_BEHIND_RATIO = 0.25
_BLOCK_BYTES = 1 << 17
"""A few hundred lines: their objects stay in the cache, and their memory is used again."""
_MAX_OPERATIONS = 1 << 25
_MAX_NOTES = 4
# Where the unit of the timer is wrong, bandwidth and time of a record contradict each other.
_MAX_BANDWIDTH_ERROR, _MAX_IMPOSSIBLE_RATIO = 3.0, 0.05
_MAX_SECONDS = 30 * 86400.0
# Ranks of a communicator whose ends tell when a collective ended: the median of these is as good.
_MAX_SAMPLED = 64
_MAX_FAMILIES = 1 << 13
_COLUMNS = {"sequence": np.int64, "size_bytes": np.int64, "micros": float, "bandwidth": float}
_SHORT_SECONDS, _SHORT_STEPS = 2.0, 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Process:
    """What the file of one process holds, in the order of the file.

    Attributes:
        operations: columns of the operations, by their name in ``Operations``.
        num_impossible: operations whose time cannot be.
    """

    file: Path
    content: InspectorFile
    families: list[Family]
    operations: dict[str, np.ndarray[tuple[int], np.dtype[Any]]]
    num_impossible: int

    @property
    def communicators(self) -> tuple[Communicator, ...]:
        """Those that it is a member of."""
        return tuple(dict.fromkeys(family.communicator for family in self.families))

    @property
    def last_written(self) -> float:
        """When its last operation was written, in seconds since the epoch."""
        return float(np.max(self.operations["written"]))

    @property
    def label(self) -> str:
        """The process in words."""
        return f"process {self.content.pid} on {printable(self.content.hostname, 100)}"


def recognises(path: Path) -> bool:
    """Whether it is a file of the Inspector, or a folder with some."""
    return holds_any(path, _is_of_inspector)


def _is_of_inspector(path: Path) -> bool:
    begin = head(path, 4096)
    has_name = FILE_NAME.fullmatch(path.name) is not None
    has_key = any(key in begin for key in (b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"'))
    return has_key and (has_name or begin.lstrip()[:1] == b"{")


def read(path: Path, options: ReadOptions) -> Recording:
    """Steps of the job; raises as ``ReaderModule.read``."""
    notes: list[str] = []
    processes = list(_read_processes(path, notes))
    if not processes:
        raise ValueError(
            f"{path} holds no operation that can be used ({' '.join(notes) or 'it is empty'}); set"
            " NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS and record it again"
        )
    job = _choose_job(processes, options.job_id, notes)
    world_size, by_rank = _ranks(job, notes)
    ranks, rows = zip(*sorted(by_rank.items()), strict=True)
    operations = _join(rows)
    silent_seconds = options.now_seconds - max(p.file.stat().st_mtime for p in rows)
    doubts, found = tuple(_doubts(rows, operations)), no_steps(len(ranks))
    try:
        found = found if doubts else find_steps(operations, len(ranks))
    except TooFewError as error:
        doubts = (str(error),)
    members = tuple(
        Member(rank=rank, node=printable(process.content.hostname, 100))
        for rank, process in zip(ranks, rows, strict=True)
    )
    steps = timed_steps(
        printable(path.name),
        list(ranks),
        np.arange(found.sync.shape[1]),
        found.seconds,
        sync=found.sync,
        world_size=world_size,
    )
    steps = replace(steps, members=members, start=found.start, last_arrival=found.last_arrival)
    notes += _remarks(rows, operations, steps, found, silent_seconds)
    return Recording(
        source_kind="inspector",
        path=path,
        steps=replace(steps, notes=tuple(notes)),
        doubts=doubts,
        launches=_find_behind(operations, members, silent_seconds),
    )


def _read_processes(path: Path, notes: list[str]) -> Iterator[_Process]:
    """The files with operations; ``notes`` takes what is left out."""
    num_left, left_out = _MAX_OPERATIONS, []
    sizes = {file: file.stat() for file in files_of(path)}
    users = Counter(status.st_uid for status in sizes.values() if status.st_size)
    for file, status in sizes.items():
        if not status.st_size or not (FILE_NAME.fullmatch(file.name) or _is_of_inspector(file)):
            continue
        if status.st_uid != users.most_common(1)[0][0]:
            left_out.append(f"Left out: {printable(file.name)} is of another user than most files.")
            continue
        content = InspectorFile()
        process = None
        try:
            process = _read_process(file, content, num_left)
        except ValueError as error:
            left_out.append(f"Left out: {printable(str(error))}.")
        if content.num_without_context:
            lines = plural(content.num_without_context, "line")
            left_out.append(
                f"{lines} of {printable(file.name)} left out: none tells their communicator and"
                " rank."
            )
        if content.num_broken:
            lines = plural(content.num_broken, "bad line")
            left_out.append(f"{lines} of {printable(file.name)} left out.")
        if process is None:
            left_out.append(f"{printable(file.name)} holds no operation.")
            continue
        num_left -= len(process.operations["family"])
        yield process
    notes += left_out[:_MAX_NOTES]
    if len(left_out) > _MAX_NOTES:
        notes.append(f"So in {plural(len(left_out) - _MAX_NOTES, 'further case')}.")


def _read_process(file: Path, content: InspectorFile, num_left: int) -> _Process | None:
    """The file; None without an operation. Raises ValueError and OSError."""
    parts: list[tuple[np.ndarray[tuple[int], np.dtype[Any]], ...]] = []
    for block in line_blocks(file, _BLOCK_BYTES, MAX_BYTES):
        batch = content.read(block)
        num_left -= len(batch.family)
        if num_left < 0 or len(content.families) > _MAX_FAMILIES:
            raise ValueError(
                f"{file.name}: the files hold over {_MAX_OPERATIONS:,} operations, or it over "
                f"{_MAX_FAMILIES:,} communicators and functions; give fewer"
            )
        if batch.family:
            parts.append(tuple(_columns(batch)))
    if not parts:
        return None
    family, sequence, size, micros, bandwidth, end, written = map(
        np.concatenate, zip(*parts, strict=True)
    )
    families = content.families
    is_possible, num_impossible = _check_times(families, family, size, micros, bandwidth)
    columns = {
        "family": family,
        "sequence": sequence,
        "size_bytes": size,
        "seconds": np.where(is_possible, micros / 1e6, np.nan).astype(np.float32),
        "ended": end / 1e6,
        "written": written / 1e6,
    }
    if not is_possible.any():
        content.num_broken += len(family)
        return None
    return _Process(
        file=file,
        content=content,
        families=families,
        operations={name: values[is_possible] for name, values in columns.items()},
        num_impossible=num_impossible,
    )


def _columns(batch: Batch) -> Iterator[np.ndarray[tuple[int], np.dtype[Any]]]:
    """The family, ``_COLUMNS``, when it ended and when it was written [operations]."""
    number = len(batch.family)
    yield np.array(batch.family, np.int32)
    for name, kind in _COLUMNS.items():
        yield np.fromiter(map(attrgetter(name), batch.operations), kind, number)
    yield np.array([math.nan if o.trace is None else ended(o) for o in batch.operations])
    yield np.array(batch.written)


def _check_times(
    families: list[Family], family: Integers, size: Integers, micros: Matrix, bandwidth: Matrix
) -> tuple[Flags, int]:
    """Which operations have a time at all, and how many have one that cannot be."""
    has_time = (micros > 0) & (micros < _MAX_SECONDS * 1e6)
    has_time &= np.array([f.communicator.rank < f.communicator.num_ranks for f in families])[family]
    # Of what is gathered or scattered either the part or the whole is meant.
    num_ranks = np.array([f.communicator.num_ranks for f in families])[family]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.log(bandwidth * micros * 1e3 / size)
        error = np.fmin(np.abs(ratio), np.abs(ratio - np.log(num_ranks)))
    is_off = (error > np.log(_MAX_BANDWIDTH_ERROR)) & (size > 0) | ~has_time
    return has_time, int(np.count_nonzero(is_off))


def _choose_job(processes: list[_Process], job_id: str | None, notes: list[str]) -> list[_Process]:
    """The processes of one job: those that communicators connect; the one that wrote last.

    Raises ValueError for a ``job_id`` that is the communicator of none.
    """
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for process in processes:
        for communicator in process.communicators:
            parent[root(communicator.id)] = root(process.communicators[0].id)
    jobs: dict[str, list[_Process]] = defaultdict(list)
    for process in processes:
        jobs[root(process.communicators[0].id)].append(process)
    if job_id is not None:
        if job_id not in parent:
            raise ValueError(f"no communicator is called {printable(job_id)}; give the id of one")
        chosen = jobs[root(job_id)]
    else:
        chosen = max(jobs.values(), key=lambda job: (max(p.last_written for p in job), len(job)))
    for job in jobs.values():
        if job is not chosen:
            pids = sorted(process.content.pid for process in job)
            name = printable(job[0].communicators[0].id, 40)
            notes.append(
                f"Left out: another job or attempt of {plural(len(job), 'process')} (pids {pids[0]}"
                f" to {pids[-1]}); --job-id {name} reports on it."
            )
    return chosen


def _ranks(job: list[_Process], notes: list[str]) -> tuple[int, dict[int, _Process]]:
    """The size of the world, and the processes by global rank.

    That is the rank in the largest communicator; where not all are in it, their order by host and
    process.
    """
    members: dict[str, int] = defaultdict(int)
    for process in job:
        for communicator in process.communicators:
            members[communicator.id] += 1
    sizes = {each.id: each.num_ranks for process in job for each in process.communicators}
    world = max(sizes, key=lambda name: (sizes[name], members[name]))
    by_rank: dict[int, _Process] = {}
    ordered = sorted(job, key=lambda p: (p.content.hostname, p.content.pid))
    if members[world] < len(job):
        notes.append(
            "No communicator has all ranks: they are numbered by host and process, not as the job"
            " numbers them."
        )
        return max(len(job), 1), dict(enumerate(ordered))
    for process in ordered:
        rank = next(each.rank for each in process.communicators if each.id == world)
        if rank in by_rank:
            notes.append(
                f"Two files are of rank {rank}: that of {process.label} is left out, not that of "
                f"{by_rank[rank].label}."
            )
            continue
        by_rank[rank] = process
    return min(sizes[world], MAX_WORLD_SIZE), by_rank


def _join(rows: Sequence[_Process]) -> Operations:
    """The operations of all ranks, by row and in the order of each file."""
    communicators: dict[str, int] = {}
    families: dict[tuple[int, str, bool], int] = {}
    numbers, is_sample = [], []
    for process in rows:
        own = process.operations["family"]
        codes = [
            families.setdefault(
                (
                    communicators.setdefault(communicator.id, len(communicators)),
                    function,
                    is_shared,
                ),
                len(families),
            )
            for communicator, function, is_shared in process.families
        ]
        numbers.append(np.array(codes, dtype=np.int32)[own])
        sampled = [
            c.rank % max(1, c.num_ranks // _MAX_SAMPLED) == 0 for c, _, _ in process.families
        ]
        is_sample.append(np.array(sampled)[own])
    columns = {
        name: np.concatenate([process.operations[name] for process in rows])
        for name in ("sequence", "size_bytes", "seconds", "ended", "written")
    }
    family = np.concatenate(numbers)
    is_collective = np.array([is_shared for _, _, is_shared in families])[family]
    lengths = [len(process.operations["family"]) for process in rows]
    return Operations(
        names=tuple(printable(name, 40) for name in communicators),
        families=tuple((communicator, function) for communicator, function, _ in families),
        row=np.repeat(np.arange(len(rows), dtype=np.int32), lengths),
        family=family,
        is_collective=is_collective,
        is_sample=np.concatenate(is_sample),
        **columns,
    )


def _doubts(rows: Sequence[_Process], operations: Operations) -> Iterator[str]:
    """Why nobody can be judged by these operations."""
    longest = np.ptp(operations.written) + _SILENT_SECONDS
    num_bad = int(np.count_nonzero(operations.seconds > longest))
    num_bad += sum(process.num_impossible for process in rows)
    num_lines = len(operations.row) + sum(process.content.num_broken for process in rows)
    num_bad += sum(process.content.num_broken for process in rows)
    if num_bad > _MAX_IMPOSSIBLE_RATIO * num_lines:
        yield (
            f"The times of {percent(min(1.0, num_bad / num_lines))} of the operations are not "
            "possible: nought, longer than the recording, or other than their bandwidth says, as "
            "RCCL 2.28 writes them."
        )


def _remarks(
    rows: Sequence[_Process],
    operations: Operations,
    steps: Steps,
    found: FoundSteps,
    silent_seconds: float,
) -> Iterator[str]:
    """What the reader should know of the files."""
    yield "Steps are the period of the collectives that the Inspector recorded; phases are unknown."
    missing, dropped = steps.missing_ranks, sum(sum(p.content.dropped.values()) for p in rows)
    if missing:
        yield f"No file of rank{'s' * (len(missing) > 1)} {list_ranks(missing)} was found."
    if dropped:
        share = dropped / (dropped + len(operations.row))
        yield (
            f"The Inspector dropped {plural(dropped, 'operation')}, {percent(share)} of all; a "
            "larger ring keeps them (NCCL_INSPECTOR_DUMP_COLL_RING_SIZE)."
        )
    if found.seconds.size:
        begin, usual = float(np.nanmin(found.start)), float(np.nanmedian(found.seconds))
        early = np.nanmax(found.ends) - found.ends > max(_SHORT_SECONDS, _SHORT_STEPS * usual)
        for row in np.flatnonzero(early)[:_MAX_NOTES].tolist():
            after = duration(float(found.ends[row]) - begin)
            yield f"The file of rank {steps.ranks[row]} ends {after} after the begin; others go on."
    if silent_seconds > _SILENT_SECONDS:
        yield (
            f"Nothing was written in the {duration(silent_seconds)} before these files were read: "
            "whether the job ended or hangs they do not tell, nor who did not come to the next "
            "operation, for they hold completed ones."
        )


def _find_behind(
    operations: Operations, members: Sequence[Member], silent_seconds: float
) -> LaunchFinding | None:
    """The few ranks that completed less than all others, which completed the same.

    Where a job ends, every rank lacks what it has not written yet, another number each.
    """
    if silent_seconds < _SILENT_SECONDS:
        return None
    for number, (communicator, function) in enumerate(operations.families):
        if function not in _ROOTED:
            continue
        is_own = operations.family == number
        last = np.full(len(members), -1)
        np.maximum.at(last, operations.row[is_own], operations.sequence[is_own])
        behind = np.flatnonzero((last >= 0) & (last < last.max()))
        if 0 < len(behind) <= _MAX_BEHIND_RATIO * np.count_nonzero(last >= 0):
            return LaunchFinding(
                kind="hang",
                why="nothing was written",
                seconds=silent_seconds,
                late=tuple(
                    LateRank(
                        rank=members[row].rank,
                        is_of_job=True,
                        process=ProcessDevice(host=members[row].node),
                        communicator=operations.names[communicator],
                        why="behind",
                        function=function,
                        launched=(int(last[row]) + 1, int(last.max()) + 1),
                        act="completed",
                    )
                    for row in behind.tolist()
                ),
            )
    return None
