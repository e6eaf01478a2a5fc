"""Reads the logs of file job, a file or a folder of them, into file value."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from lockstep_records.compressed import TruncatedStreamError, line_blocks
from lockstep_records.joblogs.clock import Clock, year_of
from lockstep_records.joblogs.groups import LineGroup
from lockstep_records.joblogs.model import Finding, JobLog, log_files
from lockstep_records.joblogs.prefix import Origin, Stamp
from lockstep_records.joblogs.progress import Milestones
from lockstep_records.joblogs.runs import RunTrace, different_runs, refusal
from lockstep_records.joblogs.scan import Scan

T = TypeVar("T")
_ORDERS_PER_FILE = 1 << 40  # more lines than any file has
# Kinds of lines in which Slurm names tasks.
_BY_TASK = frozenset({"srun_exit", "host_oom"})
_RANK_IN_NAME = re.compile(r"(?i)(?:^|[^a-z])(?:rank|task|worker|proc)[-_.=]?(\d{1,6})(?!\d)")
_ATTEMPT_FOLDER = re.compile(r"(?i)(?:^|/)(?:attempt|restart|try)[-_.]?\d+(?:/|\.|$)")
_TORCHRUN_FOLDER = re.compile(r"attempt_\d+/(\d{1,6})/(?:stdout|stderr)\.log")


def read_log(path: Path) -> JobLog:
    """Everything that a job's log says, in memory that does not grow with the log.

    Raises:
        OSError: a file or the folder cannot be read.
        ValueError: there is no log, one that cannot be read, or logs of several runs.
    """
    files = log_files(path)
    if not files:
        raise ValueError(f"no log lies in {path}; give a log or a folder with the logs of one job")
    notes: list[str] = []
    scans = [_scan(path, file, index, notes) for index, file in enumerate(files)]
    _share_zone(scans, notes)
    if several := different_runs([_trace(scan) for scan in scans]):
        raise ValueError(refusal(str(path), several))
    return _merge_files(scans, notes)


def _scan(top: Path, file: Path, index: int, notes: list[str]) -> "_FileScan":
    name = file.name if file == top else str(file.relative_to(top))
    scan = Scan(name, Clock(year_of(file)), index * _ORDERS_PER_FILE)
    try:
        for block in line_blocks(file):
            scan.add(block)
    except TruncatedStreamError:
        notes.append(f"{name} breaks off inside its compression; what came before is read.")
    except ValueError as error:
        if not scan.lines:
            raise
        notes.append(f"{error}.")
    match = _TORCHRUN_FOLDER.search(file.as_posix()) or _RANK_IN_NAME.search(file.name)
    return _FileScan(scan=scan, rank=int(match[1]) if match else None)


def _trace(file: "_FileScan") -> RunTrace:
    scan, milestones = file.scan, file.scan.milestones
    seconds, _, _ = milestones.steps.durations
    return RunTrace(
        name=scan.name,
        is_of_rank=file.rank is not None or _ATTEMPT_FOLDER.search(scan.name) is not None,
        began=scan.clock.seconds(milestones.start),
        ended=scan.clock.seconds(milestones.progress),
        is_done=milestones.end.is_known,
        first_step=milestones.steps.first_number,
        last_step=milestones.steps.last_number,
        num_steps=len(seconds),
        median_seconds=sorted(seconds)[len(seconds) // 2] if seconds else None,
    )


@dataclass(frozen=True, slots=True)
class _FileScan:
    """A file's scan, and the rank in its name."""

    scan: Scan
    rank: int | None


def _merge_files(files: list[_FileScan], notes: list[str]) -> JobLog:
    origins = {origin for file in files for origin in file.scan.origins}
    world = _stated_world(files)
    ranks = _RankResolver(origins, world, _num_nodes(files))
    findings = [
        _build_finding(group, file, ranks) for file in files for group in file.scan.groups.values()
    ]
    merged = _merge_findings(findings, several=len(files) > 1)
    # Steps and the end are those of one file: every rank may log the same ones.
    main = max(
        files,
        key=lambda file: (
            file.scan.milestones.end.is_known, len(file.scan.milestones.steps.durations[0])
        ),
    )  # fmt: skip
    milestones, end = main.scan.milestones, main.scan.milestones.end
    seconds, numbers, blocks = milestones.steps.durations
    times = _Times(files)
    ranks_seen = _ranks_seen(files, ranks)
    world = _world_size(merged, ranks_seen, world, tasks_are_ranks=ranks.tasks_are_ranks)
    return JobLog(
        files=tuple(file.scan.name for file in files),
        lines=sum(file.scan.lines for file in files),
        size_bytes=sum(file.scan.size_bytes for file in files),
        findings=merged,
        world_size=world or None,
        first_sign=times.first_sign,
        training_start=_training_start(times, main),
        last_progress=times.last_progress(),
        last_work=milestones.work,
        progress_order=milestones.progress_order,
        restart_order=max(file.scan.milestones.restart_order for file in files),
        run_stop=None
        if end.status is None
        else times.latest(lambda scan: scan.milestones.end.stop),
        run_status=end.status,
        run_stop_order=end.order,
        withdrawn_by=end.withdrawn_by,
        planned_minutes=end.planned_minutes,
        watched=times.watched(),
        last_sign=times.latest(lambda scan: scan.clock.latest),
        step_seconds=seconds,
        step_numbers=numbers,
        step_blocks=blocks,
        last_step=_last_step(files),
        enqueued=_by_rank(files, ranks, lambda milestones: milestones.enqueued),
        timeouts=_by_rank(files, ranks, lambda milestones: milestones.timeouts),
        notes=tuple(notes),
        num_known_lines=sum(file.scan.milestones.num_lines for file in files)
        + sum(finding.count for finding in merged),
    )


def _training_start(times: "_Times", main: _FileScan) -> float | None:
    """The first progress; later where the trainer's summary states a shorter training."""
    start = times.earliest(lambda scan: scan.milestones.start)
    end = main.scan.milestones.end
    stop = main.scan.clock.seconds(end.stop)
    if end.runtime_seconds is None or stop is None:
        return start
    return max(stop - end.runtime_seconds, start or 0.0)


def _share_zone(files: list[_FileScan], notes: list[str]) -> None:
    """Files that hold local times only take the zone of the job's other files, if these agree."""
    known = {c.ahead_seconds for c in (file.scan.clock for file in files)} - {None}
    for file in files:
        if len(known) == 1:
            (file.scan.clock.shared_ahead_seconds,) = known
        if file.scan.clock.is_mixed:
            notes.append(
                f"{file.scan.name} has local times and times with a zone, and no two lines of one"
                " moment relate them: local times are left out."
            )


def _stated_world(files: list[_FileScan]) -> int:
    """The number of ranks as stated or as many as initialised; 0 where neither is logged."""
    sizes = [file.scan.milestones.world for file in files]
    inits = sum(file.scan.milestones.num_inits for file in files)
    return max([*sizes, inits if inits > 1 else 0])


def _num_nodes(files: list[_FileScan]) -> int | None:
    stated = [file.scan.milestones.num_nodes for file in files]
    return max((nodes for nodes in stated if nodes is not None), default=None)


def _ranks_seen(files: list[_FileScan], ranks: "_RankResolver") -> set[int]:
    """Ranks that wrote a line, or that a file is named after."""
    writers = {
        rank
        for file in files
        for origin in file.scan.origins
        for rank in ranks.resolve(origin, file.rank)
    }
    return writers | {file.rank for file in files if file.rank is not None}


def _world_size(
    findings: tuple[Finding, ...],
    ranks_seen: set[int],
    stated: int,
    *,
    tasks_are_ranks: bool,
) -> int:
    """The number of ranks as logged, or as many as printed, initialised or ended; 0 if none."""
    exits = {rank for f in findings if f.kind == "summary_exit" for rank in f.ranks}
    if tasks_are_ranks:
        exits |= {rank for f in findings if f.kind in _BY_TASK for rank in f.ranks}
    # One rank alone is the one that prints for all of them.
    seen = ranks_seen | exits
    return max(stated, max(seen) + 1 if len(seen) > 1 else 0)


def _last_step(files: list[_FileScan]) -> int | None:
    steps = (file.scan.milestones.steps.last_number for file in files)
    return max((step for step in steps if step is not None), default=None)


def _by_rank(
    files: list[_FileScan], ranks: "_RankResolver", pick: Callable[[Milestones], dict[Origin, T]]
) -> dict[int, T]:
    """A milestone of each origin by its rank; the first one of a rank counts."""
    gathered: dict[int, T] = {}
    for file in files:
        for origin, value in pick(file.scan.milestones).items():
            for rank in ranks.resolve(origin, file.rank):
                gathered.setdefault(rank, value)
    return gathered


class _RankResolver:
    """Which rank an origin is.

    A task is a rank under srun alone, and a node where torchrun's own labels follow it; then only
    those count. A rank on its node is the global rank where there is only one node.
    """

    def __init__(self, origins: set[Origin], world: int, num_nodes: int | None) -> None:
        ranked = [origin for origin in origins if origin.rank is not None]
        below = any(origin.task is not None and origin.task != origin.rank for origin in ranked)
        locals_only = any(origin.local_rank is not None for origin in origins)
        self.tasks_are_ranks = not below and not locals_only
        nodes = {origin.task for origin in origins if origin.local_rank is not None}
        locals_seen = [o.local_rank for o in origins if o.local_rank is not None]
        fills_world = 0 < world <= max(locals_seen, default=-1) + 1
        self._is_one_node = len(nodes) <= 1 and (num_nodes == 1 or fills_world)

    def resolve(self, origin: Origin, rank_of_file: int | None) -> tuple[int, ...]:
        """The rank as a tuple of one; empty where neither origin nor file names it."""
        if origin.rank is not None:
            return (origin.rank,)
        if self.tasks_are_ranks and origin.task is not None:
            return (origin.task,)
        if self._is_one_node and origin.local_rank is not None:
            return (origin.local_rank,)
        return () if rank_of_file is None else (rank_of_file,)


class _Times:
    """Times over all files, on one axis."""

    def __init__(self, files: list[_FileScan]) -> None:
        self._files = files
        self.first_sign = self.earliest(lambda scan: scan.milestones.init) or self.earliest(
            lambda scan: scan.first_stamp
        )

    def _all(self, pick: Callable[[Scan], Stamp | None]) -> list[float]:
        values = (file.scan.clock.seconds(pick(file.scan)) for file in self._files)
        return [value for value in values if value is not None]

    def earliest(self, pick: Callable[[Scan], Stamp | None]) -> float | None:
        """The earliest over the files."""
        return min(self._all(pick), default=None)

    def latest(self, pick: Callable[[Scan], Stamp | None]) -> float | None:
        """The latest over the files."""
        return max(self._all(pick), default=None)

    def last_progress(self) -> float | None:
        """The latest progress, with what the steps after it took whose lines have no time."""
        ends = [
            seconds + file.scan.milestones.untimed_seconds
            for file in self._files
            if (seconds := file.scan.clock.seconds(file.scan.milestones.progress)) is not None
        ]
        return max(ends, default=None)

    def watched(self) -> tuple[float, float] | None:
        """First and last line since the last progress in which a scheduler calls it running."""
        spans = [
            (file.scan.clock.seconds(first), file.scan.clock.seconds(last))
            for file in self._files
            if file.scan.milestones.watched is not None
            for first, last in (file.scan.milestones.watched,)
        ]
        known = [(a, b) for a, b in spans if a is not None and b is not None]
        return max(known, key=lambda span: span[1] - span[0], default=None)


def _build_finding(group: LineGroup, file: _FileScan, ranks: _RankResolver) -> Finding:
    own = {rank for origin in group.origins for rank in ranks.resolve(origin, file.rank)}
    if not group.origins and file.rank is not None:
        own = {file.rank}
    # A line about an exit is printed by a launcher; the ranks that it names count.
    if group.named_ranks:
        own = set(group.named_ranks)
    nodes = dict.fromkeys(group.nodes) or {
        origin.node: None for origin in group.origins if origin.node is not None
    }
    first_rank = next(iter(ranks.resolve(group.line.origin, file.rank)), None)
    line = replace(group.first, rank=first_rank, time=file.scan.clock.seconds(group.line.stamp))
    return Finding(
        kind=group.kind.name,
        key=group.key,
        count=group.count,
        ranks=tuple(sorted(own)),
        nodes=tuple(nodes),
        num_origins=len(group.origins),
        order=group.order,
        last_order=group.last_order,
        first=line,
        codes=tuple(sorted(group.codes)),
    )


def _merge_findings(findings: Iterable[Finding], *, several: bool) -> tuple[Finding, ...]:
    """One finding per kind and key over all files; in order of time where there are several."""
    by_key: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        by_key.setdefault((finding.kind, finding.key), []).append(finding)
    joined = [_merge_group(group, several=several) for group in by_key.values()]
    joined.sort(key=lambda finding: finding.order)
    if several and all(finding.first.time is not None for finding in joined):
        joined.sort(key=lambda finding: finding.first.time or 0.0)
    return tuple(joined)


def _merge_group(group: list[Finding], *, several: bool) -> Finding:
    first = min(
        group, key=lambda finding: (finding.first.time or 0.0 if several else 0.0, finding.order)
    )
    return replace(
        first,
        count=sum(finding.count for finding in group),
        ranks=tuple(sorted({rank for finding in group for rank in finding.ranks})),
        nodes=tuple(dict.fromkeys(node for finding in group for node in finding.nodes)),
        num_origins=sum(finding.num_origins for finding in group),
        last_order=max(finding.last_order for finding in group),
        codes=tuple(sorted({code for finding in group for code in finding.codes})),
    )
