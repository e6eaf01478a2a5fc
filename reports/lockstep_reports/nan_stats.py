"""Reductions over what is known: NaN is left out, and nothing known gives NaN."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from lockstep_reports.recording.steps import Matrix


@contextmanager
def _nothing_known_is_fine() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN|Mean of empty", RuntimeWarning)
        yield


def _nothing(values: Matrix, axis: int | None) -> Matrix | None:
    """NaN for every result when there is nothing to reduce over; None otherwise."""
    if values.size:
        return None
    return np.full(() if axis is None else np.delete(values.shape, axis), np.nan)


def median(values: Matrix, axis: int | None = None) -> Matrix:
    """Median over an axis, or over all."""
    if (nothing := _nothing(values, axis)) is not None:
        return nothing
    if not np.isnan(values).any():
        return np.asarray(np.median(values, axis=axis))
    with _nothing_known_is_fine():
        return np.asarray(np.nanmedian(values, axis=axis))


def mean(values: Matrix, axis: int | None = None) -> Matrix:
    """Mean over an axis, or over all."""
    if (nothing := _nothing(values, axis)) is not None:
        return nothing
    with _nothing_known_is_fine():
        return np.asarray(np.nanmean(values, axis=axis))


def quantile(values: Matrix, share: float, axis: int | None = None) -> Matrix:
    """Quantile over an axis, or over all."""
    if (nothing := _nothing(values, axis)) is not None:
        return nothing
    if not np.isnan(values).any():
        return np.asarray(np.quantile(values, share, axis=axis))
    with _nothing_known_is_fine():
        return np.asarray(np.nanquantile(values, share, axis=axis))


def lowest(values: Matrix, axis: int) -> Matrix:
    """Minimum over an axis."""
    if (nothing := _nothing(values, axis)) is not None:
        return nothing
    with _nothing_known_is_fine():
        return np.asarray(np.nanmin(values, axis=axis))


def highest(values: Matrix, axis: int) -> Matrix:
    """Maximum over an axis."""
    if (nothing := _nothing(values, axis)) is not None:
        return nothing
    with _nothing_known_is_fine():
        return np.asarray(np.nanmax(values, axis=axis))


def number(value: float | np.float64 | Matrix) -> float | None:
    """A plain number, or None where it is not known."""
    plain = float(value)
    return plain if np.isfinite(plain) else None
