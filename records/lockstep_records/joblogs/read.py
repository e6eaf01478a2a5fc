"""Reads the logs of one job, a file or a folder of them, into one value."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from lockstep_records.joblogs.clock import Clock, year_of
from lockstep_records.joblogs.compressed import TruncatedStreamError, chunks
from lockstep_records.joblogs.model import Finding, JobLog, log_files
from lockstep_records.joblogs.prefix import Stamp, Who
from lockstep_records.joblogs.progress import Marks
from lockstep_records.joblogs.scan import Found, Scan

Told = TypeVar("Told")
_BETWEEN_FILES = 1 << 40
_BY_TASK = frozenset({"srun_exit", "host_oom"})
_RANK_IN_NAME = re.compile(r"(?i)(?:^|[^a-z])(?:rank|task|worker|proc)[-_.=]?(\d{1,6})(?!\d)")
_TORCHRUN_FOLDER = re.compile(r"attempt_\d+/(\d{1,6})/(?:stdout|stderr)\.log")


def read_log(path: Path) -> JobLog:
    """Everything that a job's log tells, in memory that does not grow with the log.

    Raises:
        OSError: a file or the folder cannot be read.
        ValueError: there is no log, or one that nobody could read.
    """
    files = log_files(path)
    if not files:
        raise ValueError(f"no log lies in {path}; give a log or a folder with logs of one job")
    notes: list[str] = []
    scans = [_scan(path, file, place, notes) for place, file in enumerate(files)]
    return _joined(scans, notes)


def _scan(top: Path, file: Path, place: int, notes: list[str]) -> "_Told":
    name = file.name if file == top else str(file.relative_to(top))
    scan = Scan(name, Clock(year_of(file)), place * _BETWEEN_FILES)
    try:
        for piece in chunks(file):
            scan.take(piece)
    except TruncatedStreamError:
        notes.append(f"{name} breaks off inside its compression; what came before is read.")
    except ValueError as error:
        if not scan.lines:
            raise
        notes.append(f"{error}.")
    match = _TORCHRUN_FOLDER.search(file.as_posix()) or _RANK_IN_NAME.search(file.name)
    return _Told(scan=scan, rank=int(match[1]) if match else None)


@dataclass(frozen=True, slots=True)
class _Told:
    """A file's scan, and the rank that its name tells."""

    scan: Scan
    rank: int | None


def _joined(told: list[_Told], notes: list[str]) -> JobLog:
    labels = {who for one in told for who in one.scan.labels}
    ranks = _Ranks(labels)
    findings = [_finding(found, one, ranks) for one in told for found in one.scan.found.values()]
    merged = _merged(findings, several=len(told) > 1)
    seen = {rank for one in told for who in one.scan.labels for rank in ranks.of(who, one.rank)}
    seen |= {one.rank for one in told if one.rank is not None}
    main = max(
        told, key=lambda one: (one.scan.marks.stop is not None, len(one.scan.marks.steps[0]))
    )
    marks = main.scan.marks
    seconds, numbers = marks.steps
    times = _Times(told)
    world = _world(told, merged, seen, tasks_are_ranks=ranks.tasks_are_ranks)
    return JobLog(
        files=tuple(one.scan.name for one in told),
        lines=sum(one.scan.lines for one in told),
        size_bytes=sum(one.scan.size_bytes for one in told),
        findings=merged,
        ranks_seen=tuple(sorted(seen)),
        world_size=world or None,
        first_sign=times.first_sign,
        training_start=times.least(lambda scan: scan.marks.start),
        last_progress=times.most(lambda scan: scan.marks.progress),
        progress_order=main.scan.marks.progress_order,
        restart_order=max(one.scan.marks.restart_order for one in told),
        run_stop=times.most(lambda scan: scan.marks.stop),
        run_status=marks.status,
        run_stop_order=marks.stop_order,
        last_sign=times.most(lambda scan: scan.clock.latest),
        step_seconds=seconds,
        step_numbers=numbers,
        block_means=marks.means if len(seconds) else 0,
        last_step=_last_step(told),
        enqueued=_by_rank(told, ranks, lambda marks: marks.enqueued),
        timeouts=_by_rank(told, ranks, lambda marks: marks.timeouts),
        notes=tuple(notes),
    )


def _world(
    told: list[_Told], findings: tuple[Finding, ...], seen: set[int], *, tasks_are_ranks: bool
) -> int:
    """The number of ranks as it is told, or as many as were seen, begun or ended."""
    sizes = [one.scan.marks.world for one in told if one.scan.marks.world]
    inits = sum(one.scan.marks.inits for one in told)
    exits = {rank for f in findings if f.kind == "summary_exit" for rank in f.ranks}
    if tasks_are_ranks:
        exits |= {rank for f in findings if f.kind in _BY_TASK for rank in f.ranks}
    return max([*sizes, inits if inits > 1 else 0, max(seen | exits, default=-1) + 1])


def _last_step(told: list[_Told]) -> int | None:
    steps = (one.scan.marks.last_step for one in told)
    return max((step for step in steps if step is not None), default=None)


def _by_rank(
    told: list[_Told], ranks: "_Ranks", of: Callable[[Marks], dict[Who, Told]]
) -> dict[int, Told]:
    """What each rank told, by rank; the first word counts."""
    gathered: dict[int, Told] = {}
    for one in told:
        for who, value in of(one.scan.marks).items():
            for rank in ranks.of(who, one.rank):
                gathered.setdefault(rank, value)
    return gathered


class _Ranks:
    """Which rank a label stands for.

    A task is a rank under srun alone, and a node where torchrun's own labels stand behind it; then
    only those count. A rank on its node is the rank where there is but one node.
    """

    def __init__(self, labels: set[Who]) -> None:
        told = [who for who in labels if who.rank is not None]
        below = any(who.task is not None and who.task != who.rank for who in told)
        locals_only = any(who.local is not None for who in labels)
        self.tasks_are_ranks = not below and not locals_only
        nodes = {who.task for who in labels if who.local is not None}
        self._locals = len(nodes) <= 1

    def of(self, who: Who, named: int | None) -> tuple[int, ...]:
        """The rank, as a tuple of one; empty when nothing tells."""
        if who.rank is not None:
            return (who.rank,)
        if self.tasks_are_ranks and who.task is not None:
            return (who.task,)
        if self._locals and who.local is not None:
            return (who.local,)
        return () if named is None else (named,)


class _Times:
    """Times over all files, on one axis."""

    def __init__(self, told: list[_Told]) -> None:
        self._told = told
        self.first_sign = self.least(lambda scan: scan.marks.init) or self.least(
            lambda scan: scan.first
        )

    def _all(self, which: Callable[[Scan], Stamp | None]) -> list[float]:
        values = (one.scan.clock.seconds(which(one.scan)) for one in self._told)
        return [value for value in values if value is not None]

    def least(self, which: Callable[[Scan], Stamp | None]) -> float | None:
        """The earliest over the files."""
        return min(self._all(which), default=None)

    def most(self, which: Callable[[Scan], Stamp | None]) -> float | None:
        """The latest over the files."""
        return max(self._all(which), default=None)


def _finding(found: Found, told: _Told, ranks: _Ranks) -> Finding:
    own = {rank for who in found.who for rank in ranks.of(who, told.rank)}
    if not found.who and told.rank is not None:
        own = {told.rank}
    if found.told_ranks:
        own = set(found.told_ranks)
    nodes = dict.fromkeys(found.nodes) or {
        who.node: None for who in found.who if who.node is not None
    }
    first_rank = next(iter(ranks.of(found.said.who, told.rank)), None)
    line = replace(found.first, rank=first_rank, time=told.scan.clock.seconds(found.said.stamp))
    return Finding(
        kind=found.kind.name,
        key=found.key,
        count=found.count,
        ranks=tuple(sorted(own)),
        nodes=tuple(nodes),
        voices=len(found.who),
        order=found.order,
        last_order=found.last_order,
        first=line,
        codes=tuple(sorted(found.codes)),
    )


def _merged(findings: Iterable[Finding], *, several: bool) -> tuple[Finding, ...]:
    """One finding a kind and key over all files; in order of time where several files tell it."""
    together: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        together.setdefault((finding.kind, finding.key), []).append(finding)
    joined = [_join(group, several=several) for group in together.values()]
    joined.sort(key=lambda finding: finding.order)
    if several and all(finding.first.time is not None for finding in joined):
        joined.sort(key=lambda finding: finding.first.time or 0.0)
    return tuple(joined)


def _join(group: list[Finding], *, several: bool) -> Finding:
    first = min(
        group, key=lambda finding: (finding.first.time or 0.0 if several else 0.0, finding.order)
    )
    return replace(
        first,
        count=sum(finding.count for finding in group),
        ranks=tuple(sorted({rank for finding in group for rank in finding.ranks})),
        nodes=tuple(dict.fromkeys(node for finding in group for node in finding.nodes)),
        voices=sum(finding.voices for finding in group),
        last_order=max(finding.last_order for finding in group),
        codes=tuple(sorted({code for finding in group for code in finding.codes})),
    )
