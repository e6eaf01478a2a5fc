"""Reads a job's folder: the pages of one attempt, the events of all, how the others ended."""

from pathlib import Path

from lockstep_records.jobs import list_attempts
from lockstep_reports.readers import ReadOptions
from lockstep_reports.recording.read import Recording, read_job


def recognises(path: Path) -> bool:
    """Whether it is a folder with attempts."""
    try:
        return path.is_dir() and bool(list_attempts(path))
    except OSError:
        return False


def read(path: Path, options: ReadOptions) -> Recording:
    """The job's attempt.

    Raises:
        ValueError: the attempt is not there, or no steps can be read.
        OSError: the folder cannot be read.
    """
    return read_job(path, options.attempt)
