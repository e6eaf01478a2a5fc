"""The kinds of arrays that recordings, scores and replays are made of; docstrings add the shape."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

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


_CELLS_AT_ONCE, _COLUMNS_OF_LINE = 1 << 20, 16
_CELLS_OF_COLUMNS = 1 << 23  # so many that threads can share them


class Cells(Protocol):
    """Figures [rows, columns]: a matrix, or what is computed where it is asked for.

    They are asked with two indices.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, and of columns."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """One matrix minus another of the same shape, as ``Cells``."""

    more: Cells
    less: Matrix

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the matrix."""
        return self.more.shape

    def __len__(self) -> int:
        return self.more.shape[0]

    def __getitem__(self, where: tuple[Any, Any]) -> Matrix:
        more: Matrix = self.more[where]
        return more if is_zero(self.less) else more - self.less[where]


def negative(values: Matrix) -> Difference:
    """Each value with the other sign."""
    return Difference(np.broadcast_to(values.dtype.type(0), values.shape), values)


def blocks_of_rows(values: Cells) -> Iterator[slice]:
    """Some rows [ranks, steps] after the other, so few that what is made of them is small."""
    size = max(1, _CELLS_AT_ONCE // max(1, values.shape[1]))
    return (slice(first, first + size) for first in range(0, len(values), size))


def blocks_of_columns(values: Cells) -> Iterator[slice]:
    """Some columns [ranks, steps] after the other, in the same way; of none one without any."""
    size = max(1, _CELLS_OF_COLUMNS // max(1, len(values)) // _COLUMNS_OF_LINE) * _COLUMNS_OF_LINE
    return (slice(first, first + size) for first in range(0, max(1, values.shape[1]), size))


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

    Of most jobs many fields are zero or unknown throughout, and all ranks have the same loss.
    """

    def __init__(self, shape: tuple[int, int], kind: type[np.floating]) -> None:
        self._shape, self._kind = shape, kind
        self._shared: Matrix | float | None = None
        self._values: Matrix | None = None
        self._is_set = np.zeros(shape[0], dtype=bool)

    def fill(self, rows: Integers, values: Matrix | float) -> None:
        """Sets some rows, as ``shorten`` gives them."""
        if self._values is None:
            if np.ndim(values) <= 1 and (
                self._shared is None or _are_all(np.asarray(self._shared), values)
            ):
                self._shared, self._is_set[rows] = values, True
                return
            self._values = np.empty(self._shape, self._kind)
            self._values[self._is_set] = math.nan if self._shared is None else self._shared
        # Rows after each other are set in one go.
        first, stop = int(rows[0]), int(rows[0]) + len(rows)
        where = slice(first, stop) if (rows == np.arange(first, stop)).all() else rows
        self._values[where], self._is_set[where] = values, True

    @property
    def values(self) -> Matrix:
        """The matrix, which is not written to."""
        if self._values is None:
            shared = math.nan if self._shared is None else self._shared
            return np.broadcast_to(np.asarray(shared, self._kind), self._shape)
        self._values[~self._is_set] = math.nan
        return self._values


def shorten(values: Matrix) -> Matrix | float:
    """A number where all values [rows, steps] are that, a row where all are like it; else all."""
    if not values.size:
        return math.nan
    first = float(values.flat[0])
    # One cell tells it of most matrices.
    if math.isnan(first) and np.isnan(values).all():
        return first
    if float(values.flat[-1]) == first and _are_all(values, first):
        return first
    if _is_same(values[-1, -1], values[0, -1]) and _are_all(values, values[0]):
        return np.array(values[0])
    return values


def _is_same(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))


def _are_all(values: Matrix, row: Matrix | float) -> bool:
    is_equal = values == row
    return bool(is_equal.all() or (is_equal | (np.isnan(values) & np.isnan(row))).all())
