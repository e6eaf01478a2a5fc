"""Waits for a core by row: a page has them once for several short steps, a report for each."""

import numpy as np

from lockstep_reports.arrays import Integers, Matrix


def waits_by_row(waits: Matrix, seconds: Matrix) -> Matrix:
    """Seconds that a rank waited for a core in each row [rows]; NaN where unknown.

    A wait lengthens the step that it falls into. So of the rows that share one value each gets
    what makes it longer than the shortest of them, and what is left in proportion to its length.

    Args:
        waits: seconds since the row before that has a value [rows]; NaN in rows without.
        seconds: duration of each row [rows].
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
