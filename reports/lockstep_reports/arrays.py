"""The kinds of arrays that recordings, scores and replays are made of; docstrings add the shape."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lockstep_records.page.layout import Section

Matrix = NDArray[np.float64]
"""Figures, mostly seconds [ranks, steps]; NaN where a figure is unknown."""

Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]

Seconds = NDArray[np.floating]
"""Seconds as precise as they were written: published traces hold float32, our own float64."""


def zeros(shape: tuple[int, ...]) -> Matrix:
    """Zeros that take no memory, and are not written to."""
    return np.broadcast_to(np.float64(0.0), shape)


def is_zero(values: Matrix) -> bool:
    """Whether these are ``zeros``, without a look at each of them."""
    return not any(values.strides) and bool(values.size) and not values.flat[0]


_CELLS_AT_ONCE = 1 << 20


def blocks_of_rows(values: Matrix) -> Iterator[slice]:
    """Some rows [ranks, steps] after the other, so few that what is made of them is small."""
    size = max(1, _CELLS_AT_ONCE // max(1, values.shape[1]))
    return (slice(first, first + size) for first in range(0, len(values), size))


# Codes of `struct`, as layouts declare them, in numpy's names; all little-endian.
_CODES = {
    "Q": "<u8", "q": "<i8", "I": "<u4", "i": "<i4", "H": "<u2", "h": "<i2", "B": "u1", "b": "i1",
    "d": "<f8", "f": "<f4",
}  # fmt: skip


def dtype_of(section: Section) -> np.dtype[np.void]:
    """The rows of a file as its layout declares them."""
    return np.dtype(
        {
            "names": [field.name for field in section.fields],
            "formats": [
                (_CODES.get(field.code, "S" + field.code[:-1]), (field.count,))
                if field.count > 1
                else _CODES.get(field.code, "S" + field.code[:-1])
                for field in section.fields
            ],
            "offsets": [section.offsets[field.name] for field in section.fields],
            "itemsize": section.size,
        }
    )


class GrowingMatrix:
    """A matrix [ranks, steps] that takes memory from the first row on that differs from others.

    Of most jobs many fields are zero or unknown throughout.
    """

    def __init__(self, shape: tuple[int, int], kind: type[np.floating]) -> None:
        self._shape, self._kind = shape, kind
        self._constant: float | None = None
        self._values: Matrix | None = None

    def fill(self, rows: Integers, values: Matrix | float) -> None:
        """Sets some rows [rows, steps], or all of their cells alike."""
        if self._values is None:
            if isinstance(values, float) and (
                self._constant is None or _is_same(self._constant, values)
            ):
                self._constant = values
                return
            before = math.nan if self._constant is None else self._constant
            self._values = np.full(self._shape, before, dtype=self._kind)
        self._values[rows] = values

    @property
    def values(self) -> Matrix:
        """The matrix, which is not written to."""
        if self._values is None:
            constant = math.nan if self._constant is None else self._constant
            return np.broadcast_to(self._kind(constant), self._shape)
        return self._values


def _is_same(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))


def shorten_constant(values: Matrix) -> Matrix | float:
    """A number where all values are that, or all unknown; else the values."""
    first = float(values.flat[0]) if values.size else math.nan
    same = np.isnan(values) if math.isnan(first) else values == first
    return first if same.all() else values
