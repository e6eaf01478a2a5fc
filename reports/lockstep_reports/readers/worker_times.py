"""Reads plain iteration times of workers: a table with a worker, a step or time, and a duration."""

import io
import re
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep_records.file_access.compressed import read_content
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.files import MAX_BYTES, head
from lockstep_reports.readers.traces import skip_line
from lockstep_reports.recording.recording import Recording
from lockstep_reports.recording.steps import MAX_CELLS, timed_steps
from lockstep_reports.wording import plural

# Share of all pairs of worker and step that must have a row, and of rows that must not repeat a
# pair, for the file's step numbers to be taken as they are.
_MIN_FILLED_SHARE = 0.5
_WORKER = re.compile(r"(worker|rank|replica|process)([ _-]?(id|rank|index))?")
_STEP = re.compile(r"(time|timestamp|step|iteration|iter|batch)([ _-]?(id|index|number))?")
_DURATION = re.compile(
    r"(batch|mini[ _-]?batch|iteration|iter|step)[ _-]?(time|duration|seconds)([ _-]?\w+)?"
    r"|(duration|elapsed|seconds)([ _-]?\w+)?"
)
_UNITS = {"ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "s": 1.0, "seconds": 1.0, "sec": 1.0}
_NUMBER = r"^\s*[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?\s*$"
_DELIMITERS = (",", "\t", ";")


def recognises(path: Path) -> bool:
    """Whether the first line names a worker, a place in time and a duration."""
    return path.is_file() and _columns(head(path)) is not None


def read(path: Path, options: ReadOptions) -> Recording:
    """The table, of whose rows for one pair the last counts; raises as ``ReaderModule.read``."""
    del options
    data = read_content(path, MAX_BYTES)
    columns = _columns(data[: 1 << 16])
    if columns is None:
        raise ValueError(f"{path} has no columns for worker, step and duration")
    delimiter, *names = columns
    table, num_broken = _table(path, data, delimiter, names)
    workers, times, durations = (_numbers(table[name]) for name in names)
    complete = np.isfinite(workers) & np.isfinite(times) & np.isfinite(durations)
    complete &= (durations >= 0) & (workers >= 0)
    # Larger numbers are not ranks, and a float64 holds no larger step number exactly.
    complete &= (workers < 1 << 24) & (np.abs(times) < 1 << 53)
    if not complete.any():
        raise ValueError(f"{path} has no complete row of {', '.join(names[:2])} and {names[2]}")
    unit = _UNITS.get(re.split(r"[ _-]", names[2])[-1])
    notes = [] if unit else [f"The unit of {names[2]} is unknown; figures are in the file's own."]
    num_left_out = num_broken + int(np.count_nonzero(~complete))
    if num_left_out:
        notes.append(f"{plural(num_left_out, 'incomplete row')} left out.")
    worker_numbers = workers[complete].astype(np.int64)
    slots = _slots(worker_numbers, times[complete], notes)
    seconds = durations[complete] * (unit or 1.0)
    return _recording(path, worker_numbers, slots, seconds, notes)


def _slots(workers: Integers, times: Matrix, notes: list[str]) -> Integers:
    """The step number of each row [rows]: the file's, or slots of time where few rows share one.

    Clocks that are a little off and fractional times must not tear a step apart. Times are step
    numbers, or times in any unit [rows].
    """
    written = np.rint(times).astype(np.int64)
    steps, step_of = np.unique(written, return_inverse=True)
    num_pairs = len(np.unique(np.stack([step_of, workers]), axis=1).T)
    num_cells = len(steps) * len(np.unique(workers))
    filled_share = min(num_pairs / num_cells, num_pairs / len(written))
    if num_cells == len(steps) or filled_share >= _MIN_FILLED_SHARE:
        return written
    order = np.lexsort((times, workers))
    between = np.diff(times[order])[np.diff(workers[order]) == 0]
    interval = nan_stats.median_number(between[between > 0])
    if not interval:
        return written
    notes.append("Workers have few steps in common; rows of the same slot of time count as one.")
    slots = np.rint((times - times.min()) / interval)
    numbers: Integers = np.rint(times.min() + slots * max(1.0, interval)).astype(np.int64)
    return numbers


def _recording(
    path: Path, workers: Integers, step_numbers: Integers, seconds: Matrix, notes: list[str]
) -> Recording:
    """The recording of rows with a worker, a step number and seconds, each [rows]."""
    ranks, row = np.unique(workers, return_inverse=True)
    numbers, column = np.unique(step_numbers, return_inverse=True)
    if len(ranks) * len(numbers) > MAX_CELLS:
        raise ValueError(
            f"{path} has {len(ranks):,} workers x {len(numbers):,} steps; split it by step"
        )
    num_repeated = len(row) - len(np.unique(row * len(numbers) + column))
    if num_repeated:
        pairs = plural(num_repeated, "pair")
        notes.append(f"{pairs} of worker and step recorded twice; the last counts.")
    matrix = np.full((len(ranks), len(numbers)), np.nan)
    matrix[row, column] = seconds
    is_single = np.count_nonzero(~np.isnan(matrix), axis=0) == 1
    if len(ranks) > 1 and is_single.any():
        notes.append(f"{plural(int(is_single.sum()), 'step')} recorded by one worker only.")
    name = path.name.partition(".")[0]
    steps = timed_steps(name, ranks.tolist(), numbers, matrix, notes=tuple(notes))
    return Recording(source_kind="worker_times", path=path, steps=steps, own_times=True)


def _columns(data: bytes) -> tuple[str, str, str, str] | None:
    """Delimiter, and the names of the columns for worker, step and duration; None if one lacks."""
    header = data.partition(b"\n")[0].decode("utf-8", "replace").strip().lstrip("\ufeff")
    for delimiter in _DELIMITERS:
        names = [name.strip().strip('"') for name in header.split(delimiter)]
        matches = [
            next((name for name in names if pattern.fullmatch(name.lower())), None)
            for pattern in (_WORKER, _STEP, _DURATION)
        ]
        if all(matches) and len(set(matches)) == len(matches):
            worker, step, duration = map(str, matches)
            return delimiter, worker, step, duration
    return None


def _table(path: Path, data: bytes, delimiter: str, names: list[str]) -> tuple[pa.Table, int]:
    """Some columns as text, and the number of broken lines."""
    from pyarrow import csv  # noqa: PLC0415  # 20 ms that other readers need not wait for

    num_broken = count()
    try:
        table = csv.read_csv(
            io.BytesIO(data),
            read_options=csv.ReadOptions(use_threads=False),
            parse_options=csv.ParseOptions(
                delimiter=delimiter, invalid_row_handler=partial(skip_line, num_broken)
            ),
            convert_options=csv.ConvertOptions(
                include_columns=names, column_types=dict.fromkeys(names, pa.string())
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from error
    return table, next(num_broken)


def _numbers(column: pa.ChunkedArray) -> Matrix:
    """Text as numbers [rows]; NaN where it is none."""
    plain = pc.if_else(pc.match_substring_regex(column, _NUMBER), column, None)
    values = pc.cast(pc.utf8_trim_whitespace(plain), pa.float64()).combine_chunks()
    numbers: Matrix = values.to_numpy(zero_copy_only=False)
    return numbers
