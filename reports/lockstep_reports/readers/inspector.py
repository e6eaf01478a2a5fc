"""Reads the Inspector's JSON of all ranks of a job: steps are the period of its collectives.

An operation takes from the begin of its kernel to its end, so it contains the wait for whoever came
last, and the late rank has the shortest ones. What a rank does outside of all operations is its own
work; no clock is compared for that. Clocks only order operations: those of a host by a trace where
there is one, else by the moments at which operations were written.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lockstep_records.file_access.compressed import line_blocks
from lockstep_records.nccl.inspector import FILE_NAME, Communicator, InspectorFile
from lockstep_records.text.printable import printable
from lockstep_reports.arrays import Matrix
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.files import files_of, head, holds_any
from lockstep_reports.readers.inspector_steps import (
    FoundSteps,
    Operations,
    TooFewError,
    find_steps,
)
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import MAX_WORLD_SIZE, Member, Steps, timed_steps
from lockstep_reports.wording import duration, list_ranks, percent, plural

MAX_BYTES = 1 << 33
_MAX_OPERATIONS = 1 << 25
_MAX_NOTES = 4
# Where the unit of the timer is wrong, bandwidth and time of a record contradict each other.
_MAX_BANDWIDTH_ERROR, _MAX_IMPOSSIBLE_RATIO = 3.0, 0.05
_SILENT_SECONDS = 120.0
_SHORT_SECONDS, _SHORT_STEPS = 2.0, 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Process:
    """What the file of one process holds, in the order of the file.

    Attributes:
        communicators: those that it is a member of.
        families: of its operations: the index of the communicator, and the function.
        columns: family, sequence number, bytes, whether it is a collective, seconds, end, moment of
            writing and ratio of bandwidths of each operation [operations].
    """

    file: Path
    content: InspectorFile
    communicators: tuple[Communicator, ...]
    families: tuple[tuple[int, str], ...]
    columns: tuple[Matrix, ...]

    @property
    def largest(self) -> Communicator:
        """The communicator with most ranks."""
        return max(self.communicators, key=lambda each: each.num_ranks)

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
    ranks = sorted(by_rank)
    rows = [by_rank[rank] for rank in ranks]
    operations = _join(rows)
    doubts, found = tuple(_doubts(rows, operations)), None
    if not doubts:
        try:
            found = find_steps(operations, len(ranks))
        except TooFewError as error:
            doubts = (str(error),)
    unknown = np.empty((len(ranks), 0))
    steps = timed_steps(
        printable(path.name),
        ranks,
        np.arange(0 if found is None else found.sync.shape[1]),
        unknown if found is None else found.seconds,
        sync=unknown if found is None else found.sync,
        world_size=world_size,
    )
    members = tuple(
        Member(rank=rank, node=printable(process.content.hostname, 100))
        for rank, process in zip(ranks, rows, strict=True)
    )
    notes += _remarks(rows, operations, steps, found, options.now_seconds)
    steps = replace(steps, members=members, notes=tuple(notes))
    if found is not None:
        steps = replace(steps, start=found.start, last_arrival=found.last_arrival)
    return Recording(source_kind="inspector", path=path, steps=steps, doubts=doubts)


def _read_processes(path: Path, notes: list[str]) -> Iterator[_Process]:
    """The files with operations; ``notes`` takes what is left out."""
    num_left, left_out = _MAX_OPERATIONS, []
    for file in files_of(path):
        if not (FILE_NAME.fullmatch(file.name) or _is_of_inspector(file)):
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
        num_left -= len(process.columns[0])
        yield process
    notes += left_out[:_MAX_NOTES]
    if len(left_out) > _MAX_NOTES:
        notes.append(f"So in {plural(len(left_out) - _MAX_NOTES, 'further case')}.")


def _read_process(file: Path, content: InspectorFile, num_left: int) -> _Process | None:
    """The file; None without an operation. Raises ValueError and OSError."""
    communicators: dict[Communicator, int] = {}
    families: dict[tuple[int, str], int] = {}
    parts: list[Matrix] = []
    for block in line_blocks(file, most=MAX_BYTES):
        rows = []
        for each in content.read(block):
            communicator = communicators.setdefault(each.communicator, len(communicators))
            family = families.setdefault((communicator, each.function), len(families))
            rows.append((family, *each[2:]))
        if rows:
            parts.append(np.array(rows, dtype=np.float64).T)
            num_left -= len(rows)
        if num_left < 0:
            raise ValueError(
                f"{file.name}: the files hold over {_MAX_OPERATIONS:,} operations; give fewer"
            )
    if not parts:
        return None
    return _Process(
        file=file,
        content=content,
        communicators=tuple(communicators),
        families=tuple(families),
        columns=tuple(np.concatenate(parts, axis=1)),
    )


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
        chosen = max(jobs.values(), key=lambda job: (max(_last_written(p) for p in job), len(job)))
    for job in jobs.values():
        if job is not chosen:
            pids = sorted(process.content.pid for process in job)
            notes.append(
                f"Left out: another job or attempt of {plural(len(job), 'process')} (pids {pids[0]}"
                f" to {pids[-1]}); --job-id {printable(job[0].largest.id, 40)} reports on it."
            )
    return chosen


def _last_written(process: _Process) -> float:
    return float(np.max(process.columns[-2]))


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


def _join(rows: list[_Process]) -> Operations:
    """The operations of all ranks, by row and in the order of each file."""
    communicators: dict[str, int] = {}
    families: dict[tuple[int, str], int] = {}
    family_of = []
    for process in rows:
        numbers = [
            families.setdefault(
                (communicators.setdefault(process.communicators[index].id, len(communicators)),
                 function),
                len(families),
            )
            for index, function in process.families
        ]  # fmt: skip
        family_of.append(np.array(numbers)[process.columns[0].astype(np.int64)])
    column = [np.concatenate([p.columns[index] for p in rows]) for index in range(1, 8)]
    return Operations(
        families=tuple(families),
        row=np.repeat(np.arange(len(rows)), [len(p.columns[0]) for p in rows]),
        family=np.concatenate(family_of),
        sequence=column[0].astype(np.int64),
        size_bytes=column[1].astype(np.int64),
        is_collective=column[2] > 0,
        seconds=column[3],
        ended=column[4],
        written=column[5],
        bandwidth_ratio=column[6],
    )


def _doubts(rows: list[_Process], operations: Operations) -> Iterator[str]:
    """Why nobody can be judged by these operations."""
    longest = np.ptp(operations.written) + 60.0
    num_ranks = np.array([
        process.communicators[process.families[int(family)][0]].num_ranks
        for process in rows
        for family in range(len(process.families))
    ])  # fmt: skip
    num_bad = sum(process.content.num_broken for process in rows)
    ratio = operations.bandwidth_ratio
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = [np.abs(np.log(ratio / n)) for n in (1, *set(num_ranks.tolist()))]
        is_off = ~np.isnan(ratio) & (np.min(errors, axis=0) > np.log(_MAX_BANDWIDTH_ERROR))
    is_off |= operations.seconds > longest
    share = (np.count_nonzero(is_off) + num_bad) / (len(is_off) + num_bad)
    if share > _MAX_IMPOSSIBLE_RATIO:
        yield (
            f"The times of {percent(share)} of the operations are not possible: nought, longer than"
            " the recording, or other than their bandwidth says, as RCCL 2.28 writes them."
        )


def _remarks(
    rows: list[_Process], operations: Operations, steps: Steps, found: FoundSteps | None, now: float
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
    if found is not None:
        begin, usual = float(np.nanmin(found.start)), float(np.nanmedian(found.seconds))
        early = np.nanmax(found.ends) - found.ends > max(_SHORT_SECONDS, _SHORT_STEPS * usual)
        for row in np.flatnonzero(early)[:_MAX_NOTES].tolist():
            after = duration(float(found.ends[row]) - begin)
            yield f"The file of rank {steps.ranks[row]} ends {after} after the begin; others go on."
    age = now - max((process.file.stat().st_mtime for process in rows), default=now)
    if age > _SILENT_SECONDS:
        yield (
            f"Nothing was written in the {duration(age)} before these files were read: whether the "
            "job ended or hangs they do not tell, nor who did not come to the next operation, for "
            "they hold completed ones."
        )
