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
    reduce: Callable[..., Any], values: Matrix, axis: int | None, quick: Callable[..., Any] | None
) -> Matrix:
    """By ``reduce``, which leaves NaN out; by its quick form where there is none to leave out."""
    if not values.size:
        return np.full(() if axis is None else np.delete(values.shape, axis), np.nan)
    if quick is not None and not np.isnan(values).any():
        return np.asarray(quick(values, axis=axis))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN|Mean of empty", RuntimeWarning)
        return np.asarray(reduce(values, axis=axis))


def median(values: Matrix, axis: int | None = None) -> Matrix:
    """Median over an axis, or over all."""
    # nanmedian takes several times as long, and most recordings have no gap.
    return _reduce(np.nanmedian, values, axis, np.median)


def mean(values: Matrix, axis: int | None = None) -> Matrix:
    """Mean over an axis, or over all."""
    return _reduce(np.nanmean, values, axis, None)


def quantile(values: Matrix, share: float, axis: int | None = None) -> Matrix:
    """Quantile over an axis, or over all; ``share`` 0.25 is the lower quartile."""
    return _reduce(partial(np.nanquantile, q=share), values, axis, partial(np.quantile, q=share))


def lowest(values: Matrix, axis: int) -> Matrix:
    """Minimum over an axis."""
    return _reduce(np.nanmin, values, axis, None)


def highest(values: Matrix, axis: int) -> Matrix:
    """Maximum over an axis."""
    return _reduce(np.nanmax, values, axis, None)


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
