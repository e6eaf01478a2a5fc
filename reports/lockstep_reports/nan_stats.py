"""Reductions that leave NaN (unknown) out; over nothing but NaN they give NaN.

``axis`` None reduces over all values, to an array of no dimension. Results have the unit of the
values.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lockstep_reports.arrays import Matrix


def _reduce(
    reduce: Callable[..., Any], reduce_known: Callable[..., Any], values: Matrix, axis: int | None
) -> Matrix:
    """By ``reduce_known``, which leaves NaN out, where there is any; by ``reduce`` otherwise."""
    if not values.size:
        return np.full(() if axis is None else np.delete(values.shape, axis), np.nan)
    # nanmedian takes several times as long, and most recordings have no gap.
    if not np.isnan(values).any():
        return np.asarray(reduce(values, axis=axis))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN|Mean of empty", RuntimeWarning)
        return np.asarray(reduce_known(values, axis=axis))


def median(values: Matrix, axis: int | None = None) -> Matrix:
    """Median over an axis, or over all."""
    return _reduce(np.median, np.nanmedian, values, axis)


def mean(values: Matrix, axis: int | None = None) -> Matrix:
    """Mean over an axis, or over all."""
    return _reduce(np.mean, np.nanmean, values, axis)


def quantile(values: Matrix, share: float, axis: int | None = None) -> Matrix:
    """Quantile over an axis, or over all; ``share`` 0.25 is the lower quartile."""
    return _reduce(partial(np.quantile, q=share), partial(np.nanquantile, q=share), values, axis)


def lowest(values: Matrix, axis: int) -> Matrix:
    """Minimum over an axis."""
    return _reduce(np.min, np.nanmin, values, axis)


def highest(values: Matrix, axis: int) -> Matrix:
    """Maximum over an axis."""
    return _reduce(np.max, np.nanmax, values, axis)


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
