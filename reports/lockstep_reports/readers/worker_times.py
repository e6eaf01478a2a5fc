"""Reads plain iteration times of workers: a table with a worker, a step or time, and a duration."""

import io
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lockstep_records.compressed import read_content
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.files import MAX_BYTES, head
from lockstep_reports.readers.series import of_times, timed_steps
from lockstep_reports.recording.recording import Recording
from lockstep_reports.wording import plural

MAX_CELLS = 1 << 25
_FILLED = 0.5  # of all pairs of worker and step, and of the rows that are no doubles, are told
_WORKER = re.compile(r"(worker|rank|replica|process)([ _-]?(id|rank|index))?")
_PLACE = re.compile(r"(time|timestamp|step|iteration|iter|batch)([ _-]?(id|index|number))?")
_SPENT = re.compile(
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
    """The table as a recording; of pairs told twice the last counts.

    Raises:
        ValueError: no row is complete, or the table is too big.
        OSError: the file cannot be read.
    """
    del options
    data = read_content(path, MAX_BYTES)
    columns = _columns(data[: 1 << 16])
    if columns is None:
        raise ValueError(f"{path} has no columns for worker, step and duration")
    delimiter, worker, place, spent = columns
    table, broken = _table(path, data, delimiter, [worker, place, spent])
    workers, places, seconds = (_numbers(table[name]) for name in (worker, place, spent))
    good = np.isfinite(workers) & np.isfinite(places) & np.isfinite(seconds) & (seconds >= 0)
    good &= (workers >= 0) & (workers < 1 << 24) & (np.abs(places) < 1 << 53)
    if not good.any():
        raise ValueError(f"{path} has no complete row of {worker}, {place} and {spent}")
    unit = _UNITS.get(re.split(r"[ _-]", spent)[-1])
    notes = [] if unit else [f"The unit of {spent} is not told; figures are in the file's own."]
    left_out = broken + int(np.count_nonzero(~good))
    if left_out:
        notes.append(f"{plural(left_out, 'incomplete row')} left out.")
    row = workers[good].astype(np.int64)
    slots = _slots(row, places[good], notes)
    return _recording(path, row, slots, seconds[good] * (unit or 1.0), notes)


def _slots(workers: NDArray[np.int64], times: Matrix, notes: list[str]) -> NDArray[np.int64]:
    """Numbers that rows of one step share: what is told, or times in slots where few are equal.

    Clocks that are a little off and times that are not whole must not tear a step apart.
    """
    told = np.rint(times).astype(np.int64)
    steps, of_step = np.unique(told, return_inverse=True)
    pairs = len(np.unique(np.stack([of_step, workers]), axis=1).T)
    cells = len(steps) * len(np.unique(workers))
    if cells == len(steps) or min(pairs / cells, pairs / len(told)) >= _FILLED:
        return told
    order = np.lexsort((times, workers))
    between = np.diff(times[order])[np.diff(workers[order]) == 0]
    usual = nan_stats.number(nan_stats.median(between[between > 0]))
    if not usual:
        return told
    notes.append("Workers tell few steps in common; rows of the same slot of time count as one.")
    slots = np.rint((times - times.min()) / usual)
    numbers: NDArray[np.int64] = np.rint(times.min() + slots * max(1.0, usual)).astype(np.int64)
    return numbers


def _recording(
    path: Path,
    workers: NDArray[np.int64],
    places: NDArray[np.int64],
    seconds: Matrix,
    notes: list[str],
) -> Recording:
    ranks, row = np.unique(workers, return_inverse=True)
    numbers, column = np.unique(places, return_inverse=True)
    if len(ranks) * len(numbers) > MAX_CELLS:
        raise ValueError(
            f"{path} has {len(ranks):,} workers x {len(numbers):,} steps; split it by step"
        )
    twice = len(row) - len(np.unique(row * len(numbers) + column))
    if twice:
        notes.append(f"{plural(twice, 'pair')} of worker and step told twice; the last counts.")
    matrix = np.full((len(ranks), len(numbers)), np.nan)
    matrix[row, column] = seconds
    lonely = np.count_nonzero(~np.isnan(matrix), axis=0) == 1
    if len(ranks) > 1 and lonely.any():
        notes.append(f"{plural(int(lonely.sum()), 'step')} told by one worker alone.")
    name = path.name.partition(".")[0]
    steps = timed_steps(name, ranks.tolist(), numbers, matrix, notes=tuple(notes))
    return of_times("worker_times", path, steps)


def _columns(data: bytes) -> tuple[str, str, str, str] | None:
    """Delimiter and the names of the three columns."""
    header = data.partition(b"\n")[0].decode("utf-8", "replace").strip().lstrip("\ufeff")
    for delimiter in _DELIMITERS:
        names = [name.strip().strip('"') for name in header.split(delimiter)]
        found = [
            next((name for name in names if kind.fullmatch(name.lower())), None)
            for kind in (_WORKER, _PLACE, _SPENT)
        ]
        if all(found) and len(set(found)) == len(found):
            worker, place, spent = map(str, found)
            return delimiter, worker, place, spent
    return None


def _table(path: Path, data: bytes, delimiter: str, wanted: list[str]) -> tuple[pa.Table, int]:
    from pyarrow import csv  # noqa: PLC0415  # 20 ms that other readers need not wait for

    broken = 0

    def skip(_: object) -> str:
        nonlocal broken
        broken += 1
        return "skip"

    try:
        table = csv.read_csv(
            io.BytesIO(data),
            read_options=csv.ReadOptions(use_threads=False),
            parse_options=csv.ParseOptions(delimiter=delimiter, invalid_row_handler=skip),
            convert_options=csv.ConvertOptions(
                include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string())
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from error
    return table, broken


def _numbers(column: pa.ChunkedArray) -> Matrix:
    """Text as numbers; NaN where it is none."""
    plain = pc.if_else(pc.match_substring_regex(column, _NUMBER), column, None)
    values = pc.cast(pc.utf8_trim_whitespace(plain), pa.float64()).combine_chunks()
    numbers: Matrix = values.to_numpy(zero_copy_only=False)
    return numbers
