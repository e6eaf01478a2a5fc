"""Values of the last seconds, of which the lowest, the mean and the highest are told."""

from array import array
from collections.abc import Sequence

_MOST = 4096


class Window:
    """Keeps what came at most so many seconds before the newest, summed up by each addition.

    In arrays, for a window of many small objects is cold whenever it is looked at.

    Args:
        seconds: length of the window.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._times, self._lowest, self._highest = array("d"), array("d"), array("d")
        self._sums, self._numbers = array("d"), array("q")

    @property
    def is_empty(self) -> bool:
        """Whether no value is in the window."""
        return not self._times

    def add(self, at_seconds: float, values: Sequence[float]) -> None:
        """Adds values that came together; times rise."""
        if values:
            self._times.append(at_seconds)
            self._lowest.append(min(values))
            self._highest.append(max(values))
            self._sums.append(sum(values))
            self._numbers.append(len(values))
        old = max(len(self._times) - _MOST, 0)
        while old < len(self._times) and self._times[old] < at_seconds - self._seconds:
            old += 1
        if old:
            for kept in (self._times, self._lowest, self._highest, self._sums, self._numbers):
                del kept[:old]

    def lowest(self) -> float:
        """The lowest value; the window must not be empty."""
        return min(self._lowest)

    def mean(self) -> float:
        """The mean of the values; the window must not be empty."""
        return sum(self._sums) / sum(self._numbers)

    def highest(self) -> float:
        """The highest value; the window must not be empty."""
        return max(self._highest)
