"""Reads operation traces: one row an operation of a rank, as Parquet or CSV."""

from pathlib import Path

from lockstep_reports.read import Recording
from lockstep_reports.readers import ReadOptions


def recognises(path: Path) -> bool:
    """Whether it holds operation rows."""
    del path
    return False


def read(path: Path, options: ReadOptions) -> Recording:
    """Not yet."""
    del options
    raise ValueError(f"{path} cannot be read yet")
