"""Reductions that leave NaN (unknown) out; over nothing but NaN they give NaN.

``axis`` None reduces over all values, to an array of no dimension. Results have the unit of the
values.
"""

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
    return _reduce_lanes(_median_of_ordered, values, axis)


def _median_of_ordered(ordered: Matrix, counts: Integers) -> Matrix:
    lower, upper = (_take(ordered, number) for number in ((counts - 1) // 2, counts // 2))
    return np.asarray((lower + upper) / 2)


def mean(values: Matrix, axis: int | None = None) -> Matrix:
    """Mean over an axis, or over all."""
    return _reduce(np.nanmean, values, axis)


def quantile(values: Matrix, share: float, axis: int | None = None) -> Matrix:
    """Quantile over an axis, or over all; ``share`` 0.25 is the lower quartile."""
    return _reduce_lanes(partial(_quantile_of_ordered, share), values, axis)


def _quantile_of_ordered(share: float, ordered: Matrix, counts: Integers) -> Matrix:
    position = share * np.maximum(counts - 1, 0)
    number = np.floor(position).astype(np.int64)
    part = (position - number).astype(ordered.dtype)
    lower, upper = (_take(ordered, np.minimum(n, counts - 1)) for n in (number, number + 1))
    between = upper - lower
    # From the nearer end, which is exact at both, as NumPy's own is.
    from_lower, from_upper = lower + between * part, upper - between * (1 - part)
    return np.asarray(np.where(part < _HALF, from_lower, from_upper))


def _reduce_lanes(
    function: Callable[[Matrix, Integers], Matrix], values: Matrix, axis: int | None
) -> Matrix:
    """A function of the values in order along an axis and of how many are known [...].

    A few lanes at a time, on all processors: the values in order would take as much as they.
    """
    if not values.size:
        return _unknown(values, axis)
    if not any(values.strides):
        # The same everywhere, so a few tell what all do.
        few = np.broadcast_to(values.flat[0], (1,))
        return np.broadcast_to(_on_ordered(function, few), _unknown(values, axis).shape)
    lanes = values.reshape(1, -1) if axis is None else np.moveaxis(values, axis, -1)
    size = max(1, _CELLS_AT_ONCE * len(lanes) // lanes.size)
    # Lanes that lie across each other in memory come by whole lines of its cache.
    size = -(-size // _LANES_OF_LINE) * _LANES_OF_LINE
    parts = [lanes[first : first + size] for first in range(0, len(lanes), size)]
    run = partial(_on_ordered, function)
    if len(parts) == 1:
        reduced = run(lanes)
    else:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            reduced = np.concatenate(list(pool.map(run, parts)))
    return reduced.reshape(()) if axis is None else reduced


def _on_ordered(function: Callable[[Matrix, Integers], Matrix], lanes: Matrix) -> Matrix:
    """The function of some lanes; unknown values come last in them.

    The sort uses vectors of numbers, which makes it five times as quick as a selection.
    """
    ordered = np.array(lanes, order="C")
    ordered.sort(axis=-1)
    if np.isnan(ordered[..., -1]).any():
        return function(ordered, np.asarray(np.count_nonzero(~np.isnan(ordered), axis=-1)))
    return function(ordered, np.full(ordered.shape[:-1], ordered.shape[-1]))


def _take(ordered: Matrix, number: Integers) -> Matrix:
    """The n-th value of each lane; of a lane without known ones its NaN."""
    taken = np.take_along_axis(ordered, np.maximum(number, 0)[..., None], axis=-1)
    return np.asarray(taken[..., 0])


def lowest(values: Matrix, axis: int | None = None) -> Matrix:
    """Minimum over an axis, or over all."""
    return _reduce(np.nanmin, values, axis)


def highest(values: Matrix, axis: int | None = None) -> Matrix:
    """Maximum over an axis, or over all."""
    return _reduce(np.nanmax, values, axis)


def number(value: float | np.float64 | Matrix) -> float | None:
    """A single value as a Python float; None where it is unknown."""
    plain = float(value)
    return plain if np.isfinite(plain) else None


def median_number(values: Matrix) -> float | None:
    """Median of all values; None where none is known."""
    return number(median(values))


def quantile_number(values: Matrix, share: float) -> float | None:
    """Quantile of all values; None where none is known."""
    return number(quantile(values, share))
