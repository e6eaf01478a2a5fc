"""Thins a job of an archive: episodes stay whole, of other steps quantiles by minute are left.

New files come first, then the file that names them, by which all readers go from then on; what it
replaces is removed last, by the next run where this one is killed.
"""

import dataclasses
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.json import encode
from msgspec.structs import replace

from lockstep_records.archive.manifest import (
    FINDINGS,
    THINNED,
    AttemptPart,
    Stretch,
    ThinnedAttempt,
    ThinnedJob,
)
from lockstep_records.archive.reader import ArchiveError, JobArchive
from lockstep_records.archive.tables import write_table
from lockstep_records.events.event import parse_lines
from lockstep_reports import nan_stats
from lockstep_reports.analysis.findings import decode_findings, encode_findings, find_intact
from lockstep_reports.analysis.steps import StepAnalysis, analyse
from lockstep_reports.arrays import Flags, Integers
from lockstep_reports.minutes import sum_up
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.archive import Contents, read_archive
from lockstep_reports.readers.engine import run_here
from lockstep_reports.readers.pages import ONLY_NEWEST
from lockstep_reports.recording.recording import Bound, Recording, Window
from lockstep_reports.recording.steps import Steps
from lockstep_reports.recording.thinned import SECONDS

_REPLACED = re.compile(r"\.?(part-)?(steps|operations|minutes)-[0-9]{12}\.parquet(\.part)?")

# Of a rank in a file, and of a node's new files without their rows, as measured.
_ROW_BYTES, _MINUTE_BYTES, _FILES_BYTES = 31, 81, 20_000


class Thinning(NamedTuple):
    """What thinning did with a job, or would do.

    Attributes:
        reason: why the job is left as it is; empty where it is thinned.
        num_steps: of all attempts, of which ``num_intact`` stay whole.
        bytes_before: of all rows; ``bytes_after`` of what replaces them.
    """

    reason: str = ""
    num_steps: int = 0
    num_intact: int = 0
    num_episodes: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


class _Plan(NamedTuple):
    """What an attempt becomes.

    Attributes:
        numbers: of its steps, ascending [steps].
        minutes: since the epoch, in which each began [steps].
        intact: first and last step of what stays whole, ascending [stretches, 2].
        findings: JSON of what the analysis found.
        last_sign: newest sign of life: seconds since the epoch.
    """

    numbers: Integers
    minutes: Integers
    intact: Integers
    findings: bytes
    num_episodes: int
    last_sign: float

    def locate(self, step: Integers) -> tuple[Integers, Flags]:
        """Number of the stretches up to the step of each row, and whether it lies in one [rows]."""
        stretch_of = np.searchsorted(self.intact[:, 0], step, side="right")
        is_intact = (stretch_of > 0) & (step <= self.intact[stretch_of - 1, 1])
        return stretch_of, is_intact

    def minute_of(self, step: Integers) -> Integers:
        """The minute of the step of each row [rows]."""
        column = np.minimum(np.searchsorted(self.numbers, step), len(self.numbers) - 1)
        minutes: Integers = self.minutes[column]
        return minutes


def thin_job(
    archive: JobArchive, newest_end: float, now_seconds: float, *, is_dry: bool = False
) -> Thinning:
    """Thins a job that ended before a wall clock time; a dry run writes nothing.

    Raises ValueError, in one sentence, where something of the job cannot be read or written.
    """
    contents = Contents(archive, is_strict=True)
    now = round(now_seconds)
    job = contents.thinned or ThinnedJob(job_id=archive.job_id, time=now)
    parts = [pair for each in contents.manifests for pair in each.attempts.items()]
    numbers = {int(number) for number, part in parts if part.end_row} - {*map(int, job.attempts)}
    if not numbers:
        if job.attempts and not job.is_clean and not is_dry:
            _clean(archive, job)
        return Thinning("is thinned" if job.attempts else "has no steps in columns")
    if reason := _why_not(contents, newest_end):
        return Thinning(reason)
    plans = {number: _plan_attempt(contents, number) for number in sorted(numbers)}
    # Without events only the pages tell an end.
    if max(plan.last_sign for plan in plans.values()) > newest_end:
        return Thinning("is younger")
    put = _put_nothing if is_dry else archive.write
    thinned = {
        number: _AttemptThinner(archive, number, plan, put).thin(dict(contents.parts(number)))
        for number, plan in plans.items()
    }
    attempts = {str(number): attempt for number, (attempt, _) in thinned.items()}
    job = replace(job, time=now, attempts={**job.attempts, **attempts}, is_clean=False)
    put(THINNED, data := encode(job))
    if not is_dry:
        _clean(archive, job)
    sums = (sum(column) for column in zip(*(each[1:] for _, each in thinned.values()), strict=True))
    total = Thinning("", *sums)
    return total._replace(bytes_after=total.bytes_after + len(data))


def _put_nothing(_path: str, _data: bytes) -> None:
    """Stands in for ``JobArchive.write`` in a dry run."""


def _why_not(contents: Contents, newest_end: float) -> str:
    """Why a job stays as it is; empty where nothing is known against it without its rows."""
    parts = [part for each in contents.manifests for part in each.attempts.values()]
    if not all(part.is_complete for part in parts):
        return "has a node that is not done"
    names = (contents.archive.list_names(str(attempt)) for attempt in contents.attempts)
    if any(name.endswith(".page") for name in chain.from_iterable(names)):
        return "has pages that are not in columns"
    lines = contents.read_events().decode(errors="replace").split("\n")
    newest = max((event.time for event in parse_lines(lines)), default=-math.inf)
    return "is younger" if newest > newest_end else ""


def _plan_attempt(contents: Contents, number: int) -> _Plan:
    """Judges an attempt as a report does, all of its steps; raises ValueError."""
    columns, analyses = list[tuple[Integers, Integers, Flags]](), list[StepAnalysis]()
    for recording in _read_all(contents.archive, number):
        steps = recording.steps
        if recording.thinned is not None:
            raise ValueError("another run has thinned it in between")
        analyses.append(analysis := analyse(recording))
        starts = np.fmax.accumulate(nan_stats.lowest(steps.start, axis=0))
        minutes = np.nan_to_num(starts // SECONDS).astype(np.int64)
        columns.append((steps.numbers, minutes, find_intact(analysis, steps)))
    numbers, minutes, intact = map(np.concatenate, zip(*columns[::-1], strict=True))
    spans = [s for _, p in contents.parts(number) for s in p.stretches if s.table == "steps"]
    ends = min(s.first_step for s in spans), max(s.last_step for s in spans)
    findings = encode_findings(analyses[0])
    decode_findings(findings)
    if not _is_worth(analyses[0].steps, minutes[~intact], len(findings)):
        intact[:] = True
    # A column may be of several steps, of which it has the number of the last.
    begins = np.concatenate([[ends[0]], numbers[:-1] + 1])
    stops = np.append(numbers[:-1], ends[1])
    edges = np.diff(intact.astype(np.int8), prepend=0, append=0)
    return _Plan(
        numbers=numbers,
        minutes=minutes,
        intact=np.column_stack([begins[edges[:-1] > 0], stops[edges[1:] < 0]]),
        findings=findings,
        num_episodes=sum(len(each.episodes) for each in analyses),
        last_sign=analyses[0].times.last_sign or 0.0,
    )


def _is_worth(steps: Steps, minutes: Integers, num_bytes: int) -> bool:
    """Whether minutes take less than the steps in them [steps], beside so many bytes.

    Of steps as long as minutes, and of few, they do not.
    """
    saved = _ROW_BYTES * len(minutes) - _MINUTE_BYTES * len(np.unique(minutes))
    return saved * len(steps.members) > num_bytes + _FILES_BYTES * len(steps.nodes)


def _read_all(archive: JobArchive, number: int) -> Iterator[Recording]:
    """An attempt as a report reads it, and the steps before, if these are too many for one."""
    options = ReadOptions(attempt=number, only_window=True)
    while True:
        recording = read_archive(archive, options, is_strict=True)
        yield recording
        if not any(note.startswith(ONLY_NEWEST) for note in recording.steps.notes):
            return
        if recording.steps.round_steps:
            raise ValueError("it has more steps than a report judges, and its ranks meet in rounds")
        last = Bound(step=int(recording.steps.numbers[0]) - 1)
        options = dataclasses.replace(options, window=Window(last=last))


class _AttemptThinner(NamedTuple):
    """Writes what is to be left of an attempt, by its plan."""

    archive: JobArchive
    number: int
    plan: _Plan
    put: Callable[[str, bytes], None]

    def thin(self, parts: Mapping[str, AttemptPart]) -> tuple[ThinnedAttempt, Thinning]:
        """What is left of the nodes' parts; raises ArchiveError."""
        is_local = self.archive.is_local
        results = list(run_here(self._thin_node, list(parts.items()), is_local=is_local))
        nodes = {node: part for node, (part, _) in zip(parts, results, strict=True)}
        num_thinned = max(count for _, count in results)
        before, after = (
            sum(stretch.size_bytes for part in each for stretch in part.stretches)
            for each in (parts.values(), nodes.values())
        )
        plan = self.plan
        if num_thinned:
            self.put(f"{self.number}/{FINDINGS}", plan.findings)
            after += len(plan.findings)
        intact = tuple((first, last) for first, last in plan.intact.tolist())
        attempt = ThinnedAttempt(
            nodes=nodes,
            intact=intact,
            num_thinned=num_thinned,
            findings_crc=zlib.crc32(plan.findings),
        )
        num_intact = int(np.count_nonzero(plan.locate(plan.numbers)[1]))
        num_steps = len(plan.numbers)
        return attempt, Thinning("", num_steps, num_intact, plan.num_episodes, before, after)

    def _thin_node(self, item: tuple[str, AttemptPart]) -> tuple[AttemptPart, int]:
        """What is left of a node's part, and how many steps of a rank that takes away at most."""
        node, part = item
        stretches, minutes = list[Stretch](), list[pa.Table]()
        folder = f"nodes/{node}/{self.number}"
        for stretch in part.stretches:
            rows, num_damaged = self.archive.read_rows(node, self.number, stretch, ())
            if num_damaged:
                raise ArchiveError(f"{folder}/{stretch.name} has {num_damaged:,} damaged rows")
            step = rows.column("step").to_numpy()
            stretch_of, is_intact = self.plan.locate(step)
            if is_intact.all():
                stretches.append(stretch)
                continue
            if is_intact.any():
                left = rows.filter(pa.array(is_intact))
                stretches.append(self._put_rows(folder, replace(stretch, is_part=True), left))
            if stretch.table == "steps":
                gone = rows.filter(pa.array(~is_intact))
                minute = self.plan.minute_of(step[~is_intact])
                minutes.append(sum_up(gone, minute, stretch_of[~is_intact]))
        if not minutes:
            return replace(part, stretches=tuple(stretches)), 0
        table = pa.concat_tables(minutes)
        new = Stretch(table="minutes", first_row=0, end_row=part.end_row, rows=0, size_bytes=0)
        stretches.append(self._put_rows(folder, new, table))
        rank = np.unique(table.column("rank").to_numpy(), return_inverse=True)[1]
        counts = np.bincount(rank, table.column("steps").to_numpy())
        return replace(part, stretches=tuple(stretches)), int(counts.max())

    def _put_rows(self, folder: str, stretch: Stretch, rows: pa.Table) -> Stretch:
        """Writes a file, and gives the stretch that names it."""
        data = write_table([rows])
        self.put(f"{folder}/{stretch.name}", data)
        bounds = ("first_step", "last_step") if stretch.table == "minutes" else ("step", "step")
        first, last = (rows.column(name).to_numpy() for name in bounds)
        return replace(
            stretch,
            rows=len(rows),
            size_bytes=len(data),
            first_step=int(first.min()),
            last_step=int(last.max()),
        )


def _clean(archive: JobArchive, job: ThinnedJob) -> None:
    """Removes the files of rows that the job does not name any more, and notes that."""
    left = {
        f"nodes/{node}/{number}": {stretch.name for stretch in part.stretches}
        for number, attempt in job.attempts.items()
        for node, part in attempt.nodes.items()
    }

    def clean(folder: str) -> None:
        for name in archive.list_names(folder).keys() - left[folder]:
            if _REPLACED.fullmatch(name):
                archive.remove(f"{folder}/{name}")

    for _ in run_here(clean, list(left), is_local=archive.is_local):
        pass
    archive.write(THINNED, encode(replace(job, is_clean=True)))
