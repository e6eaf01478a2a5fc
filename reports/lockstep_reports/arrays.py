"""The kinds of arrays that recordings, scores and replays are made of; docstrings add the shape."""

import numpy as np
from numpy.typing import NDArray

from lockstep_records.page.layout import Section

Matrix = NDArray[np.float64]
"""Figures, mostly seconds [ranks, steps]; NaN where a figure is unknown."""

Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]

Seconds = NDArray[np.floating]
"""Seconds as precise as they were written: published traces hold float32, our own float64."""

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
