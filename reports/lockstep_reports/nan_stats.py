"""Reductions that leave NaN (unknown) out; over nothing but NaN they give NaN.

``axis`` None reduces over all values, to an array of no dimension. Results have the unit of the
values.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from lockstep_reports.arrays import Matrix


@contextmanager
def _all_unknown_is_expected() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN|Mean of empty", RuntimeWarning)
        yield


def _reduce_nothing(values: Matrix, axis: int | None) -> Matrix | None:
    """NaN for every result when there is nothing to reduce over; None otherwise."""
    if values.size:
        return None
    return np.full(() if axis is None else np.delete(values.shape, axis), np.nan)


def median(values: Matrix, axis: int | None = None) -> Matrix:
    """Median over an axis, or over all."""
    if (unknown := _reduce_nothing(values, axis)) is not None:
        return unknown
    # nanmedian takes several times as long, and most recordings have no gap.
    if not np.isnan(values).any():
        return np.asarray(np.median(values, axis=axis))
    with _all_unknown_is_expected():
        return np.asarray(np.nanmedian(values, axis=axis))


def mean(values: Matrix, axis: int | None = None) -> Matrix:
    """Mean over an axis, or over all."""
    if (unknown := _reduce_nothing(values, axis)) is not None:
        return unknown
    with _all_unknown_is_expected():
        return np.asarray(np.nanmean(values, axis=axis))


def quantile(values: Matrix, share: float, axis: int | None = None) -> Matrix:
    """Quantile over an axis, or over all; ``share`` 0.25 is the lower quartile."""
    if (unknown := _reduce_nothing(values, axis)) is not None:
        return unknown
    if not np.isnan(values).any():
        return np.asarray(np.quantile(values, share, axis=axis))
    with _all_unknown_is_expected():
        return np.asarray(np.nanquantile(values, share, axis=axis))


def lowest(values: Matrix, axis: int) -> Matrix:
    """Minimum over an axis."""
    if (unknown := _reduce_nothing(values, axis)) is not None:
        return unknown
    with _all_unknown_is_expected():
        return np.asarray(np.nanmin(values, axis=axis))


def highest(values: Matrix, axis: int) -> Matrix:
    """Maximum over an axis."""
    if (unknown := _reduce_nothing(values, axis)) is not None:
        return unknown
    with _all_unknown_is_expected():
        return np.asarray(np.nanmax(values, axis=axis))


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
