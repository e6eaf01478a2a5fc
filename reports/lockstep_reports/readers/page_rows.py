"""From rows of pages to matrices [ranks, steps], with how long a loop slept or had no core."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import OWN_WORK_PHASES, STEP_PHASES
from lockstep_catalogue.vocabulary import Clock
from lockstep_records.page.layout import EXTRAS, ROW, ROW_DOMAINS, ROW_FLAGS
from lockstep_records.page.reader import Page
from lockstep_reports.arrays import Integers, Matrix, shorten

QUEUED, STOPPED, COLLECTION = "run_queue_seconds", "stopped_seconds", "collection_seconds"
WAITS = {
    "run_queue": "run_queue_outside_seconds", "blocked": "blocked_seconds", "stopped": STOPPED,
    "collection": COLLECTION,
}  # fmt: skip
TIMES, FLAGS, LOADS = (
    ("start", "last_arrival"),
    ("device", "nonfinite", "hang"),
    ("tokens", "sequence_squares"),
)
_CLOCKED = ("seconds", "host_bound_seconds", *STEP_PHASES, *TIMES)
_NAMES = (*_CLOCKED, "loss", QUEUED, *WAITS.values(), *FLAGS, *LOADS)
# Durations are as precise as in a row: clocks and counts need more.
_WRITTEN, _EXACT = np.float32, {*TIMES, *LOADS}
MATRIX_TYPES = {name: np.float64 if name in _EXACT else _WRITTEN for name in _NAMES}
"""Fields of the rows that a report needs, with the numbers that hold them."""
_WALL_RANGE = (0.0, 4e9)  # 1970 to 2096; anything else is a damaged clock
_ROUNDING = 1e-6
BITS = {name: 1 << ROW_FLAGS.index(name) for name in FLAGS}


class Columns:
    """Rows as one array a field, of which each lies by itself; used as an array of rows is."""

    def __init__(self, fields: Mapping[str, NDArray[Any]]) -> None:
        self.fields = fields

    @classmethod
    def of(cls, rows: NDArray[np.void]) -> "Columns":
        """The rows of an array."""
        return cls({name: rows[name] for name in rows.dtype.names or ()})

    def __len__(self) -> int:
        return len(self.fields["step"])

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.fields[key]
        return Columns({name: values[key] for name, values in self.fields.items()})


Rows = NDArray[np.void] | Columns
Part = Mapping[str, Matrix | float]
"""Fields of some pages by name [pages, steps], each as ``shorten`` gives it."""


class Question(NamedTuple):
    """What a report asks of rows.

    Attributes:
        numbers: steps that it is about [steps], ascending.
        judged: those that waits are shared among, which it may be a part of, likewise.
        clock: by which times count; those by another one are unknown, but in steps ``by_host``.
    """

    numbers: Integers
    judged: Integers
    clock: Clock
    by_host: Integers

    def answer(self, pages: Sequence[Page], rows: Rows, page_of: Integers) -> Part:
        """The fields of some pages; NaN where a rank has no row of the step.

        The rows of a page follow each other, and of each ``page_of`` tells its page [rows].
        """
        is_judged = _is_among(rows["step"], self.judged)
        rows, page_of = select_rows(rows, is_judged), page_of[is_judged]
        counts = np.bincount(page_of, minlength=len(pages))
        is_right = is_on_device(rows) == (self.clock == "device")
        is_right |= np.isin(rows["step"], self.by_host)
        shape = len(pages), len(self.numbers)
        is_whole = bool((counts == shape[1]).all())
        is_whole = is_whole and bool((rows["step"].reshape(shape) == self.numbers).all())
        if not is_whole:
            is_inside = _is_among(rows["step"], self.numbers)
            row, column = page_of[is_inside], np.searchsorted(self.numbers, rows["step"][is_inside])
        part: dict[str, Matrix | float] = {}
        for name, kind in MATRIX_TYPES.items():
            values = _column(pages, counts, rows, name)
            if name in _CLOCKED and not is_right.all():
                values = np.where(is_right, values, np.nan)
            cells: Any = values.reshape(shape).astype(kind) if is_whole else None
            if not is_whole:
                # Of a step that was written twice the last row counts.
                cells = np.full(shape, np.nan, kind)
                cells[row, column] = values[is_inside]
            part[name] = shorten(cells)
        return part


def is_on_device(rows: Rows) -> NDArray[np.bool_]:
    """Whether the times of rows are those of a device [rows]."""
    on_device: NDArray[np.bool_] = (rows["flags"] & BITS["device"]) != 0
    return on_device


def are_possible(rows: Rows) -> NDArray[np.bool_]:
    """Which rows can be true [rows]: those of which each known field has a value of its domain."""
    # A checksum does not stop a writer from writing nonsense.
    is_possible = np.ones(len(rows), dtype=bool)
    names = rows.fields if isinstance(rows, Columns) else rows.dtype.names or ()
    present = np.bitwise_or.reduce(rows["present"]) if "present" in names else 0
    for name, (low, high) in ROW_DOMAINS.items():
        extra, bit = _EXTRAS.get(name), ROW.presence.get(name)
        is_absent = bit is not None and not present & bit
        if is_absent or ("extras" if extra is not None else name) not in names:
            continue
        values = rows[name] if extra is None else rows["extras"][:, extra]
        if bit is not None:
            values = np.where(rows["present"] & bit, values, low)
        # Two passes without a mask take least, and few rows are damaged.
        if not (values.min(initial=low) >= low and values.max(initial=low) <= high):
            inside = (values >= low) & (values <= high)
            is_possible &= inside if inside.ndim == 1 else inside.all(axis=1)
    return is_possible


def select_rows(rows: Rows, chosen: NDArray[np.bool_]) -> Rows:
    """Some of the rows; a copy only where there are others."""
    return rows if chosen.all() else rows[chosen]


def join_rows(parts: Sequence[Columns]) -> Columns:
    """Rows after each other, at least one part."""
    if len(parts) == 1:
        return parts[0]
    return Columns({name: np.concatenate([p[name] for p in parts]) for name in parts[0].fields})


def _is_among(steps: Integers, numbers: Integers) -> NDArray[np.bool_]:
    """Which steps [rows] are among ascending numbers."""
    if not len(numbers):
        return np.zeros(len(steps), dtype=bool)
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        is_between: NDArray[np.bool_] = (steps >= numbers[0]) & (steps <= numbers[-1])
        return is_between
    nearest = numbers[np.minimum(np.searchsorted(numbers, steps), len(numbers) - 1)]
    is_among: NDArray[np.bool_] = nearest == steps
    return is_among


def _column(pages: Sequence[Page], counts: Integers, rows: Rows, name: str) -> Matrix:
    """One field of the pages' rows after each other [rows]; NaN where unknown or not possible."""
    if name in TIMES:
        return where_present(rows, f"{name}_ns", _wall(pages, counts, rows[f"{name}_ns"]))
    if name in FLAGS:
        return (rows["flags"] & BITS[name] > 0).astype(np.float64)
    if name in _PAGE_FIELDS:
        # Most machines have no waits of a page to share.
        if not np.any(rows["present"] & ROW.presence[QUEUED]):
            return np.full(len(rows), np.nan)
        ends = counts.cumsum()
        return np.concatenate(
            [_PAGE_FIELDS[name](rows[a:b]) for a, b in zip(ends - counts, ends, strict=True)]
        )
    if name not in STEP_PHASES:
        return _cover_phases(rows) if name == "seconds" else column(rows, name)
    seconds: Matrix = rows["phase_seconds"][:, STEP_PHASES.index(name)]
    return seconds


def _cover_phases(rows: Rows) -> Matrix:
    """Seconds of each step [rows], not shorter than its phases by the error of rounding them."""
    seconds, total = rows["seconds"], np.zeros(len(rows), dtype=_WRITTEN)
    for index in range(len(STEP_PHASES)):
        total += rows["phase_seconds"][:, index]
    is_rounded = (total > seconds) & (total <= seconds * _WRITTEN(1 + _ROUNDING))
    return np.where(is_rounded, total, seconds)


def _wall(pages: Sequence[Page], counts: Integers, monotonic_ns: Integers) -> Matrix:
    """Monotonic times as wall clock seconds [rows]; NaN where the clock is damaged."""
    created = [page.identity["start_monotonic_ns"] for page in pages]
    births = [page.wall_seconds(ns) for page, ns in zip(pages, created, strict=True)]
    since_created = (
        monotonic_ns.astype(np.float64) - np.repeat(np.array(created, np.float64), counts)
    ) / 1e9
    wall = np.repeat(births, counts) + since_created
    low, high = _WALL_RANGE
    return np.where((wall > low) & (wall < high), wall, np.nan)


_EXTRAS = {name: index for index, name in enumerate(EXTRAS)}


def column(rows: Rows, name: str) -> Matrix:
    """A field of the rows, or one of their extras [rows]; NaN where it is unknown."""
    extra = _EXTRAS.get(name)
    values = rows[name] if extra is None else rows["extras"][:, extra]
    return where_present(rows, name, values.astype(np.float64))


def where_present(rows: Rows, name: str, values: Matrix) -> Matrix:
    """Values [rows] whose presence bit is set; NaN for the others."""
    bit = ROW.presence.get(name)
    return values if bit is None else np.where(rows["present"] & bit, values, np.nan)


def phase_column(rows: Rows, phase: str) -> Matrix:
    """Seconds in a phase [rows]."""
    seconds: Matrix = rows["phase_seconds"][:, STEP_PHASES.index(phase)].astype(np.float64)
    return seconds


def waits_by_row(waits: Matrix, seconds: Matrix) -> Matrix:
    """Seconds that a rank waited for a core in each row [rows]; NaN where unknown.

    ``waits`` are since the row before that has a value; NaN in rows without. A wait lengthens the
    step that it falls into. So of the rows that share one value each gets what makes it longer than
    the shortest of them, and what is left in proportion to its length.
    """
    has_value = np.flatnonzero(~np.isnan(waits))
    by_row = np.full(len(waits), np.nan)
    if not len(has_value):
        return by_row
    covered = slice(0, int(has_value[-1]) + 1)
    # A group of rows ends with the one that has its value.
    starts = np.concatenate([[0], has_value[:-1] + 1])
    sizes = np.diff(np.concatenate([starts, [covered.stop]]))
    lengths = np.nan_to_num(seconds[covered])
    by_row[covered] = _shares(waits[has_value], lengths, starts, sizes)
    return by_row


def _shares(waited: Matrix, lengths: Matrix, starts: Integers, sizes: Integers) -> Matrix:
    """The rows' shares of what was waited in each group [rows]."""

    def spread(values: Matrix) -> Matrix:
        return np.repeat(values, sizes)

    beyond = lengths - spread(np.minimum.reduceat(lengths, starts))
    total_beyond = np.add.reduceat(beyond, starts)
    total = np.add.reduceat(lengths, starts)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num(np.minimum(1.0, waited / total_beyond))
        rest = np.nan_to_num((waited - share * total_beyond) / total)
    shares: Matrix = spread(share) * beyond + spread(rest) * lengths
    return shares


def blocked_by_row(rows: Rows) -> Matrix:
    """Seconds of own work that a rank sleeps [rows]; NaN where unknown.

    It then has no core, does not wait for one, and was not stopped.
    """
    own = np.sum([phase_column(rows, name) for name in OWN_WORK_PHASES], axis=0)
    own -= np.minimum(np.nan_to_num(column(rows, STOPPED)), own)
    spent = column(rows, QUEUED) + column(rows, "core_seconds")
    has_value = np.flatnonzero(~np.isnan(spent))
    blocked = np.full(len(rows), np.nan)
    blocked[has_value] = np.maximum(0.0, _since_value(own, has_value) - spent[has_value])
    # The first value covers what came after the first read, at a step that nobody wrote down.
    blocked[has_value[:1]] = 0.0
    return waits_by_row(blocked, rows["seconds"])


def queued_outside(rows: Rows) -> Matrix:
    """Seconds outside collectives that a rank waits for a core [rows]; NaN where unknown.

    All its waits, but no more than the time in which it had no core there: waits in collectives
    make nobody late.
    """
    queued, core = column(rows, QUEUED), column(rows, "core_seconds")
    has_value = np.flatnonzero(~np.isnan(queued))
    outside = _since_value(rows["seconds"] - phase_column(rows, "sync"), has_value)
    # Of waits and a bound that is unknown, the waits.
    without_core = np.maximum(outside - core[has_value], 0.0)
    queued[has_value] = np.fmin(queued[has_value], without_core)
    return waits_by_row(queued, rows["seconds"])


def _since_value(seconds: Matrix, has_value: Integers) -> Matrix:
    """Sums of [rows] since the row of the value before [values]."""
    sums: Matrix = np.concatenate([[0.0], np.cumsum(seconds)])[np.append(0, has_value + 1)]
    return np.diff(sums)


_PAGE_FIELDS: dict[str, Callable[[Rows], Matrix]] = {
    WAITS["blocked"]: blocked_by_row, WAITS["run_queue"]: queued_outside,
}  # fmt: skip
