"""Reads the logs of one job, a file or a folder of them, into one value."""

import re
from pathlib import Path

from lockstep_outcomes.joblogs.model import JobLog, log_files
from lockstep_outcomes.joblogs.reading.clock import Clock, year_of
from lockstep_outcomes.joblogs.reading.merge import merge_files
from lockstep_outcomes.joblogs.reading.runs import RunTrace, different_runs, refusal
from lockstep_outcomes.joblogs.reading.scan import Scan
from lockstep_records.file_access.compressed import TruncatedStreamError, line_blocks

_ORDERS_PER_FILE = 1 << 40  # more lines than any file has
_RANK_IN_NAME = re.compile(r"(?i)(?:^|[^a-z])(?:rank|task|worker|proc)[-_.=]?(\d{1,6})(?!\d)")
_ATTEMPT_FOLDER = re.compile(r"(?i)(?:^|/)(?:attempt|restart|try)[-_.]?\d+(?:/|\.|$)")
_TORCHRUN_FOLDER = re.compile(r"attempt_\d+/(\d{1,6})/(?:stdout|stderr)\.log")


def read_log(path: Path) -> JobLog:
    """Everything that a job's log says, in memory that does not grow with the log.

    Raises:
        OSError: a file or the folder cannot be read.
        ValueError: no log was given, one cannot be read, or logs of several runs.
    """
    files = log_files(path)
    if not files:
        raise ValueError(f"no log lies in {path}; give a log or a folder with the logs of one job")
    notes: list[str] = []
    scans = [_scan(path, file, index, notes) for index, file in enumerate(files)]
    _share_zone(scans, notes)
    if several := different_runs([_trace(scan) for scan in scans]):
        raise ValueError(refusal(str(path), several))
    return merge_files(scans, notes)


def _scan(top: Path, file: Path, index: int, notes: list[str]) -> Scan:
    name = file.name if file == top else str(file.relative_to(top))
    match = _TORCHRUN_FOLDER.search(file.as_posix()) or _RANK_IN_NAME.search(file.name)
    rank = int(match[1]) if match else None
    scan = Scan(name, Clock(year_of(file)), index * _ORDERS_PER_FILE, rank)
    try:
        for block in line_blocks(file):
            scan.add(block)
    except TruncatedStreamError:
        notes.append(f"{name} breaks off inside its compression; what came before is read.")
    except ValueError as error:
        if not scan.lines:
            raise
        notes.append(f"{error}.")
    return scan


def _trace(scan: Scan) -> RunTrace:
    milestones = scan.milestones
    seconds, _, _ = milestones.steps.durations
    return RunTrace(
        name=scan.name,
        is_of_rank=scan.rank is not None or _ATTEMPT_FOLDER.search(scan.name) is not None,
        began=scan.clock.seconds(milestones.start),
        ended=scan.clock.seconds(milestones.progress),
        is_done=milestones.end.is_known,
        first_step=milestones.steps.first_number,
        last_step=milestones.steps.last_number,
        num_steps=len(seconds),
        median_seconds=sorted(seconds)[len(seconds) // 2] if seconds else None,
    )


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
