"""Reads the step times that a job logs as one series: JSON, a series per metric, gaps as nan."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from lockstep_records.file_access.compressed import read_content
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.files import head
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import timed_steps
from lockstep_reports.wording import plural

_MAX_BYTES = 1 << 26
_MAX_NUMBER = 1 << 53
_NAME = re.compile(
    r"(iteration|iter|step|batch)[ _-]?(time|duration|seconds)([ _-](s|ms|seconds))?"
)
_HEAD = re.compile(rb'^\s*\{\s*"[^"]+"\s*:\s*\{\s*"(start_step|end_step|step_interval|values)"')


def recognises(path: Path) -> bool:
    """Whether it begins as a JSON object of series."""
    return path.is_file() and _HEAD.match(head(path, 4096)) is not None


def read(path: Path, options: ReadOptions) -> Recording:
    """The series as one rank, which represents all; raises as ``ReaderModule.read``."""
    del options
    try:
        document = json.loads(read_content(path, _MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a complete JSON file: {error}") from error
    name, series = _series(path, document)
    points = {
        int(step): _number(value)
        for step, value in series.items()
        if step.isdecimal() and int(step) < _MAX_NUMBER
    }
    seconds_of = {step: seconds for step, seconds in sorted(points.items()) if seconds is not None}
    if not seconds_of:
        raise ValueError(f"{path}: the series {name!r} holds no step time")
    unit = 1e-3 if name.endswith("ms") else 1.0
    gaps = len(series) - len(seconds_of)
    notes = ["One series for the whole job: no rank can be told from another."]
    if gaps:
        notes.append(f"{plural(gaps, 'logged step')} without a number; they are left out.")
    steps = timed_steps(
        path.name.partition(".")[0],
        [0],
        np.array(list(seconds_of), dtype=np.int64),
        np.array([list(seconds_of.values())]) * unit,
        notes=tuple(notes),
    )
    return Recording(source_kind="step_series", path=path, steps=steps, own_times=True)


def _series(path: Path, document: Any) -> tuple[str, dict[str, Any]]:
    """Name and values by step of the first series of step times."""
    names = [name for name in document if _NAME.fullmatch(name.lower())]
    if not names:
        raise ValueError(
            f"{path} has series, but none of step times; one named iteration-time is needed"
        )
    entry = document[names[0]]
    series = entry.get("values") if isinstance(entry, dict) else None
    if not isinstance(series, dict):
        raise ValueError(f"{path}: {names[0]!r} has no 'values' by step")  # noqa: TRY004  # the user's file, not our type
    return names[0].lower(), series


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number >= 0 else None
