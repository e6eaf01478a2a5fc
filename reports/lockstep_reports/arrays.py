"""The kinds of arrays that recordings, scores and replays are made of; docstrings add the shape."""

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
"""Figures, mostly seconds [ranks, steps]; NaN where a figure is unknown."""

Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]

Seconds = NDArray[np.floating]
"""Seconds as precise as they were written: published traces hold float32, our own float64."""
