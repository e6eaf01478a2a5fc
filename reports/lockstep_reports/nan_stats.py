"""Reductions that leave NaN (unknown) out; over nothing but NaN they give NaN.

``axis`` None reduces over all values, to an array of no dimension. Results have the unit of the
values.
"""

import math
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from lockstep_reports.arrays import Integers, Matrix

_HALF = 0.5
_CELLS_AT_ONCE, _LANES_OF_LINE = 1 << 20, 16
# The sort uses vectors of numbers: of fewer values it is quicker than a selection.
_MOST_SORTED = 1 << 10
_Combine = Callable[[Matrix, Matrix, Matrix], Matrix]


def _reduce(reduce: Callable[..., Any], values: Matrix, axis: int | None) -> Matrix:
    """By ``reduce``, which leaves NaN out."""
    if not values.size:
        return _unknown(values, axis)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN|Mean of empty", RuntimeWarning)
        return np.asarray(reduce(values, axis=axis))


def _unknown(values: Matrix, axis: int | None) -> Matrix:
    return np.full(() if axis is None else np.delete(values.shape, axis), np.nan)


def median(values: Matrix, axis: int | None = None) -> Matrix:
    """Median over an axis, or over all."""
    return _reduce_lanes(_HALF, lambda lower, upper, _: (lower + upper) / 2, values, axis)


def mean(values: Matrix, axis: int | None = None) -> Matrix:
    """Mean over an axis, or over all."""
    return _reduce(np.nanmean, values, axis)


def quantile(values: Matrix, share: float, axis: int | None = None) -> Matrix:
    """Quantile over an axis, or over all; ``share`` 0.25 is the lower quartile."""
    return _reduce_lanes(share, _interpolate, values, axis)


def _interpolate(lower: Matrix, upper: Matrix, part: Matrix) -> Matrix:
    between = upper - lower
    # From the nearer end, which is exact at both, as NumPy's own is.
    from_lower, from_upper = lower + between * part, upper - between * (1 - part)
    return np.asarray(np.where(part < _HALF, from_lower, from_upper))


def _reduce_lanes(share: float, combine: _Combine, values: Matrix, axis: int | None) -> Matrix:
    """What is made of the two values beside a quantile of those known along an axis [...].

    A few lanes at a time, on all processors: the values in order would take as much as they.
    """
    if not values.size:
        return _unknown(values, axis)
    run = partial(_reduce_some, share, combine)
    if not any(values.strides):
        # The same everywhere, so a few tell what all do.
        few = np.broadcast_to(values.flat[0], (1,))
        return np.broadcast_to(run(few), _unknown(values, axis).shape)
    lanes = values.reshape(1, -1) if axis is None else np.moveaxis(values, axis, -1)
    size = max(1, _CELLS_AT_ONCE * len(lanes) // lanes.size)
    # Lanes that lie across each other in memory come by whole lines of its cache.
    size = -(-size // _LANES_OF_LINE) * _LANES_OF_LINE
    parts = [lanes[first : first + size] for first in range(0, len(lanes), size)]
    if len(parts) == 1:
        reduced = run(lanes)
    else:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            reduced = np.concatenate(list(pool.map(run, parts)))
    return reduced.reshape(()) if axis is None else reduced


def _reduce_some(share: float, combine: _Combine, lanes: Matrix) -> Matrix:
    # Close together before they are turned over.
    values = np.ascontiguousarray(np.array(lanes, order="K"))
    count = values.shape[-1]
    if count > _MOST_SORTED and not np.isnan(values).any():
        number, next_number, part = _find_neighbours(share, np.asarray(count), values.dtype)
        values.partition(int(next_number), axis=-1)
        upper = values[..., next_number]
        is_between = number < next_number
        lower = values[..., :next_number].max(axis=-1) if is_between else upper
        return combine(lower, upper, part)
    values.sort(axis=-1)
    # Unknown values come last.
    counts = np.asarray(np.count_nonzero(~np.isnan(values), axis=-1))
    number, next_number, part = _find_neighbours(share, counts, values.dtype)
    return combine(_take(values, number), _take(values, next_number), part)


def _find_neighbours(
    share: float, counts: Integers, kind: Any
) -> tuple[Integers, Integers, Matrix]:
    """Numbers of the values beside a quantile of so many, and how far it is to the second [...]."""
    position = share * np.maximum(counts - 1, 0)
    number = np.floor(position).astype(np.int64)
    return number, np.ceil(position).astype(np.int64), (position - number).astype(kind)


def _take(ordered: Matrix, number: Integers) -> Matrix:
    """The n-th value of each lane; of a lane without known ones its NaN."""
    return np.asarray(np.take_along_axis(ordered, number[..., None], axis=-1)[..., 0])


def lowest(values: Matrix, axis: int | None = None) -> Matrix:
    """Minimum over an axis, or over all."""
    return _reduce(np.nanmin, values, axis)


def highest(values: Matrix, axis: int | None = None) -> Matrix:
    """Maximum over an axis, or over all."""
    return _reduce(np.nanmax, values, axis)


def number(value: float | np.float64 | Matrix) -> float | None:
    """A single value as a Python float; None where it is unknown."""
    plain = float(value)
    return plain if math.isfinite(plain) else None


def median_number(values: Matrix) -> float | None:
    """Median of all values; None where none is known."""
    return number(median(values))


def quantile_number(values: Matrix, share: float) -> float | None:
    """Quantile of all values; None where none is known."""
    return number(quantile(values, share))
