"""Reads the logs of one job, a file or a folder of them, into one value."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TypeVar

from lockstep_outcomes.joblogs.clock import Clock, year_of
from lockstep_outcomes.joblogs.model import Finding, JobLog, log_files
from lockstep_outcomes.joblogs.prefix import Origin, Stamp
from lockstep_outcomes.joblogs.progress import Milestones
from lockstep_outcomes.joblogs.scan import LineGroup, Scan
from lockstep_records.file_access.compressed import TruncatedStreamError, line_blocks


class LogTimes:
    """Times over all files, on one axis."""

    def __init__(self, files: list[Scan]) -> None:
        self._files = files
        self.first_sign = self.earliest(lambda scan: scan.milestones.init) or self.earliest(
            lambda scan: scan.first_stamp
        )

    def _all(self, pick: Callable[[Scan], Stamp | None]) -> list[float]:
        values = (file.clock.seconds(pick(file)) for file in self._files)
        return [value for value in values if value is not None]

    def earliest(self, pick: Callable[[Scan], Stamp | None]) -> float | None:
        """The earliest over the files."""
        return min(self._all(pick), default=None)

    def latest(self, pick: Callable[[Scan], Stamp | None]) -> float | None:
        """The latest over the files."""
        return max(self._all(pick), default=None)

    def last_progress(self) -> float | None:
        """The latest progress, with what the steps after it took whose lines have no time.

        None where these state no duration and the next time in the log is long after.
        """
        ends = []
        for file in self._files:
            milestones, clock = file.milestones, file.clock
            begin, bound = clock.seconds(milestones.progress), clock.seconds(milestones.bounded)
            if begin is None:
                continue
            end = begin + milestones.untimed_seconds
            if milestones.is_untimed and bound is not None and bound - end > _BOUND_SECONDS:
                return None
            ends.append(end)
        return max(ends, default=None)

    def watched(self) -> tuple[float, float] | None:
        """First and last line since the last progress in which a scheduler calls it running."""
        spans = [
            (file.clock.seconds(first), file.clock.seconds(last))
            for file in self._files
            if file.milestones.watched is not None
            for first, last in (file.milestones.watched,)
        ]
        complete = [(a, b) for a, b in spans if a is not None and b is not None]
        return max(complete, key=lambda span: span[1] - span[0], default=None)

    def training_start(self, main: Scan) -> float | None:
        """The first progress; later where the trainer's summary states a shorter training."""
        start = self.earliest(lambda scan: scan.milestones.start)
        end = main.milestones.end
        stop = main.clock.seconds(end.stop)
        if end.runtime_seconds is None or stop is None:
            return start
        return max(stop - end.runtime_seconds, start or 0.0)

    def run_stop(self) -> float | None:
        """When the run ended by its own log; None when it reported no end, or went on."""
        ends = (file.milestones.end for file in self._files)
        if not any(end.is_known for end in ends):
            return None
        return self.latest(lambda scan: scan.milestones.end.stop)

    def last_step(self) -> int | None:
        """The highest step of any file."""
        steps = (file.milestones.steps.last_number for file in self._files)
        return max((step for step in steps if step is not None), default=None)


_BOUND_SECONDS = 120.0
T = TypeVar("T")
# Kinds of lines in which Slurm names tasks.
_TASK_KINDS = frozenset({"srun_exit", "host_oom", "peer_lost", "not_finite_locally"})


class RankResolver:
    """Which rank an origin is.

    A task is a rank under srun alone, and a node where torchrun's own labels follow it; then only
    those count. A rank on its node is the global rank where the log shows that there is only one
    node: it says so, or the ranks on a node are as many as all ranks.
    """

    def __init__(self, files: list[Scan]) -> None:
        self._files = files
        origins = {origin for file in files for origin in file.origins}
        ranked = [origin for origin in origins if origin.rank is not None]
        below = any(origin.task is not None and origin.task != origin.rank for origin in ranked)
        locals_only = any(origin.local_rank is not None for origin in origins)
        self.tasks_are_ranks = not below and not locals_only
        nodes = {origin.task for origin in origins if origin.local_rank is not None}
        locals_seen = [o.local_rank for o in origins if o.local_rank is not None]
        fills_world = 0 < _stated_world(files) <= max(locals_seen, default=-1) + 1
        self._is_one_node = len(nodes) <= 1 and (_num_nodes(files) == 1 or fills_world)

    def resolve(self, origin: Origin, rank_of_file: int | None) -> tuple[int, ...]:
        """The rank as a tuple of one; empty where neither origin nor file names it."""
        if origin.rank is not None:
            return (origin.rank,)
        if self.tasks_are_ranks and origin.task is not None:
            return (origin.task,)
        if self._is_one_node and origin.local_rank is not None:
            return (origin.local_rank,)
        return () if rank_of_file is None else (rank_of_file,)

    def group_by_rank(self, pick: Callable[[Milestones], dict[Origin, T]]) -> dict[int, T]:
        """A milestone of each origin by its rank; the first one of a rank counts."""
        gathered: dict[int, T] = {}
        for file in self._files:
            for origin, value in pick(file.milestones).items():
                for rank in self.resolve(origin, file.rank):
                    gathered.setdefault(rank, value)
        return gathered


def world_size(files: list[Scan], findings: tuple[Finding, ...], ranks: RankResolver) -> int:
    """The number of ranks as logged, or as many as printed, initialised or ended; 0 if none."""
    exits = {rank for f in findings if f.kind == "exit_line" for rank in f.ranks}
    if ranks.tasks_are_ranks:
        exits |= {rank for f in findings if f.kind in _TASK_KINDS for rank in f.ranks}
    # One rank alone is the one that prints for all of them.
    seen = _ranks_seen(files, ranks) | exits
    return max(_stated_world(files), max(seen) + 1 if len(seen) > 1 else 0)


def _ranks_seen(files: list[Scan], ranks: RankResolver) -> set[int]:
    writers = {
        rank
        for file in files
        for origin in file.origins
        for rank in ranks.resolve(origin, file.rank)
    }
    return writers | {file.rank for file in files if file.rank is not None}


def _stated_world(files: list[Scan]) -> int:
    sizes = [file.milestones.world for file in files]
    inits = sum(file.milestones.num_inits for file in files)
    return max([*sizes, inits if inits > 1 else 0])


def _num_nodes(files: list[Scan]) -> int | None:
    stated = [file.milestones.num_nodes for file in files]
    return max((nodes for nodes in stated if nodes is not None), default=None)


_NAMED = 8
_OVERLAP_SECONDS = 1.0
# Ranks of one job log the same steps, so that counts and medians of two runs rarely agree so well.
_ALIKE = 0.02
_START_SECONDS = 60.0


def different_runs(files: list[Scan]) -> list[str]:
    """Names of files that hold another run than some other file; empty where all are one job's.

    A file that its name or folder calls that of one rank or attempt holds no other run.
    """
    trained = [
        file
        for file in files
        if file.rank is None
        and _ATTEMPT_FOLDER.search(file.name) is None
        and (_began(file) is not None or file.milestones.steps.first_number is not None)
    ]
    different: dict[str, None] = {}
    for first, second in combinations(trained, 2):
        if _are_two_runs(first, second):
            different |= {first.name: None, second.name: None}
    return list(different)


def _began(file: Scan) -> float | None:
    return file.clock.seconds(file.milestones.start)


def _are_two_runs(first: Scan, second: Scan) -> bool:
    early, late = sorted((first, second), key=lambda file: _began(file) or 0.0)
    begin, next_begin = _began(early), _began(late)
    ended = early.clock.seconds(early.milestones.progress)
    if begin is None or next_begin is None or ended is None:
        return _differ_in_steps(first, second)
    is_done = early.milestones.end.is_known
    if next_begin >= ended - _OVERLAP_SECONDS:
        # One after the other: attempts of one job go on where the last one was.
        return is_done or not _goes_on(early, late)
    if next_begin - begin > _START_SECONDS and is_done and late.milestones.end.is_known:
        return True
    return _differ_in_steps(first, second)


def _goes_on(early: Scan, late: Scan) -> bool:
    before, after = early.milestones.steps, late.milestones.steps
    if before.first_number is None or after.first_number is None or before.last_number is None:
        return False
    most = before.last_number + 1 + before.last_number // 2
    return before.first_number < after.first_number <= most


def _differ_in_steps(first: Scan, second: Scan) -> bool:
    """Whether both log many steps, and other ones."""
    seconds = [file.milestones.steps.durations[0] for file in (first, second)]
    counts = [len(each) for each in seconds]
    if not all(counts):
        return False
    medians = [sorted(each)[len(each) // 2] for each in seconds]
    return all(min(pair) < (1 - _ALIKE) * max(pair) for pair in (medians, counts))


def merge_files(files: list[Scan], notes: list[str]) -> JobLog:
    """What all files of a job say, as one log."""
    ranks = RankResolver(files)
    findings = _merge_findings(files, ranks)
    # Steps and the end are those of one file: every rank may log the same ones.
    main = max(files, key=_end_and_steps)
    milestones, end = main.milestones, main.milestones.end
    seconds, numbers, blocks = milestones.steps.durations
    times = LogTimes(files)
    return JobLog(
        files=tuple(file.name for file in files),
        lines=sum(file.lines for file in files),
        findings=findings,
        world_size=world_size(files, findings, ranks) or None,
        first_sign=times.first_sign,
        training_start=times.training_start(main),
        last_progress=times.last_progress(),
        last_work=milestones.work,
        progress_order=milestones.progress_order,
        restart_order=max(file.milestones.restart_order for file in files),
        run_stop=times.run_stop(),
        run_status=end.status,
        run_stop_order=end.order,
        withdrawn_by=end.withdrawn_by,
        planned_minutes=end.planned_minutes,
        watched=times.watched(),
        last_sign=times.latest(lambda scan: scan.clock.latest),
        step_seconds=seconds,
        step_numbers=numbers,
        step_blocks=blocks,
        last_step=times.last_step(),
        enqueued=ranks.group_by_rank(lambda milestones: milestones.enqueued),
        timeouts=ranks.group_by_rank(lambda milestones: milestones.timeouts),
        notes=tuple(notes),
        num_known_lines=sum(file.milestones.num_lines for file in files)
        + sum(finding.count for finding in findings),
        num_severe=sum(file.num_severe for file in files),
        num_unknown=sum(file.num_unknown for file in files),
        first_unknown=next(filter(None, (file.first_unknown for file in files)), ""),
    )


def _end_and_steps(file: Scan) -> tuple[bool, int]:
    milestones = file.milestones
    return milestones.end.is_known, len(milestones.steps.durations[0])


def _merge_findings(files: list[Scan], ranks: RankResolver) -> tuple[Finding, ...]:
    """One finding per kind and key over all files; in order of time where there are several."""
    by_key: dict[tuple[str, str], list[tuple[Scan, LineGroup]]] = {}
    for file in files:
        for key, group in file.groups.items():
            by_key.setdefault(key, []).append((file, group))
    findings = [_finding(parts, ranks) for parts in by_key.values()]
    findings.sort(key=lambda finding: finding.order)
    if len(files) > 1 and all(finding.first.time is not None for finding in findings):
        findings.sort(key=lambda finding: finding.first.time or 0.0)
    return tuple(findings)


def _finding(parts: list[tuple[Scan, LineGroup]], ranks: RankResolver) -> Finding:
    times = [file.clock.seconds(group.line.stamp) for file, group in parts]
    at = min(range(len(parts)), key=lambda i: (times[i] or 0.0, parts[i][1].order))
    file, first = parts[at]
    rank = next(iter(ranks.resolve(first.line.origin, file.rank)), None)
    groups = [group for _, group in parts]
    own = {rank for file, group in parts for rank in _ranks_of(file, group, ranks)}
    return Finding(
        kind=first.kind.name,
        key=first.key,
        count=sum(group.count for group in groups),
        ranks=tuple(sorted(own)),
        nodes=tuple(dict.fromkeys(node for group in groups for node in group.all_nodes)),
        num_origins=sum(len(group.origins) for group in groups),
        order=first.order,
        last_order=max(group.last_order for group in groups),
        first=replace(first.first, rank=rank, time=times[at]),
        codes=tuple(sorted({code for group in groups for code in group.codes})),
        is_mild=all(group.is_mild for group in groups),
    )


def _ranks_of(file: Scan, group: LineGroup, ranks: RankResolver) -> set[int]:
    """The ranks of a group: those that its lines name, as a launcher does, else who printed it."""
    if group.named_ranks:
        return set(group.named_ranks)
    if not group.origins and file.rank is not None:
        return {file.rank}
    return {rank for origin in group.origins for rank in ranks.resolve(origin, file.rank)}


_ORDERS_PER_FILE = 1 << 40  # more lines than any file has
_RANK_IN_NAME = re.compile(r"(?i)(?:^|[^a-z])(?:rank|task|worker|proc)[-_.=]?(\d{1,6})(?!\d)")
_ATTEMPT_FOLDER = re.compile(r"(?i)(?:^|/)(?:attempt|restart|try)[-_.]?\d+(?:/|\.|$)")
_TORCHRUN_FOLDER = re.compile(r"attempt_\d+/(\d{1,6})/(?:stdout|stderr)\.log")


def read_log(path: Path) -> JobLog:
    """Everything that a job's log says, in memory that does not grow with the log.

    Raises OSError where it cannot be read; ValueError without a log, or for several runs' logs.
    """
    files = log_files(path)
    if not files:
        raise ValueError(f"no log lies in {path}; give a log or a folder with the logs of one job")
    notes: list[str] = []
    scans = [_scan(path, file, index, notes) for index, file in enumerate(files)]
    _share_zone(scans, notes)
    if several := different_runs(scans):
        names = ", ".join((*several[:_NAMED], *["..."][: len(several) > _NAMED]))
        raise ValueError(
            f"{path} holds logs of {len(several)} runs ({names}); give the log of one of them"
        )
    return merge_files(scans, notes)


def _scan(top: Path, file: Path, index: int, notes: list[str]) -> Scan:
    name = file.name if file == top else str(file.relative_to(top))
    match = _TORCHRUN_FOLDER.search(file.as_posix()) or _RANK_IN_NAME.search(file.name)
    rank = int(match[1]) if match else None
    scan = Scan(name, Clock(year_of(file)), index * _ORDERS_PER_FILE, rank)
    try:
        for block in _as_utf8(line_blocks(file)):
            scan.add(block)
    except TruncatedStreamError:
        notes.append(f"{name} breaks off inside its compression; what came before is read.")
    except ValueError as error:
        if not scan.lines:
            raise
        notes.append(f"{error}.")
    return scan


def _as_utf8(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks of a log; of one in UTF-16, by its mark, in UTF-8."""
    decoder = None
    for number, block in enumerate(blocks):
        if number == 0 and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            decoder = codecs.getincrementaldecoder("utf-16")("replace")
        yield block if decoder is None else decoder.decode(block).encode("utf-8", "replace")


def _share_zone(files: list[Scan], notes: list[str]) -> None:
    """Files that hold local times only take the zone of the job's other files, if these agree."""
    offsets = {file.clock.ahead_seconds for file in files} - {None}
    for file in files:
        if len(offsets) == 1:
            (file.clock.shared_ahead_seconds,) = offsets
        if file.clock.is_mixed:
            notes.append(
                f"{file.name} has local times and times with a zone, and no two lines of one"
                " moment relate them: local times are left out."
            )
