"""Fields of a page's rows, and how long its loop waited for a core or slept in each row."""

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import OWN_WORK_PHASES, STEP_PHASES
from lockstep_records.page.layout import EXTRAS, ROW
from lockstep_reports.arrays import Integers, Matrix

QUEUED, STOPPED = "run_queue_seconds", "stopped_seconds"
_EXTRAS = {name: index for index, name in enumerate(EXTRAS)}


def column(rows: NDArray[np.void], name: str) -> Matrix:
    """A field of the rows, or one of their extras [rows]; NaN where it is unknown."""
    extra = _EXTRAS.get(name)
    values = rows[name] if extra is None else rows["extras"][:, extra]
    return where_present(rows, name, values.astype(np.float64))


def where_present(rows: NDArray[np.void], name: str, values: Matrix) -> Matrix:
    """Values [rows] whose presence bit is set; NaN for the others."""
    bit = ROW.presence.get(name)
    return values if bit is None else np.where(rows["present"] & bit, values, np.nan)


def phase_column(rows: NDArray[np.void], phase: str) -> Matrix:
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


def blocked_by_row(rows: NDArray[np.void]) -> Matrix:
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


def queued_outside(rows: NDArray[np.void]) -> Matrix:
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
