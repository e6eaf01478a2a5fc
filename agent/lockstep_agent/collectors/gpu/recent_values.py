"""Values of the last seconds, with their minimum, mean and maximum."""

from array import array
from collections.abc import Sequence

_MAX_ADDITIONS = 4096


class Window:
    """Keeps the values that are at most so many seconds older than the newest.

    Each addition is summed up into one entry of five arrays: a list of small objects would be out
    of the processor's caches whenever it is read, a tick later.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._times, self._lowest, self._highest = array("d"), array("d"), array("d")
        self._sums, self._counts = array("d"), array("q")

    @property
    def is_empty(self) -> bool:
        """Whether no value is in the window."""
        return not self._times

    def add(self, at_seconds: float, values: Sequence[float]) -> None:
        """Adds values that were read together; times rise from call to call."""
        if values:
            self._times.append(at_seconds)
            self._lowest.append(min(values))
            self._highest.append(max(values))
            self._sums.append(sum(values))
            self._counts.append(len(values))
        num_old = max(len(self._times) - _MAX_ADDITIONS, 0)
        while num_old < len(self._times) and self._times[num_old] < at_seconds - self._seconds:
            num_old += 1
        if num_old:
            for column in (self._times, self._lowest, self._highest, self._sums, self._counts):
                del column[:num_old]

    def lowest(self) -> float:
        """The minimum; the window must not be empty."""
        return min(self._lowest)

    def mean(self) -> float:
        """The mean of the values; the window must not be empty."""
        return sum(self._sums) / sum(self._counts)

    def highest(self) -> float:
        """The maximum; the window must not be empty."""
        return max(self._highest)
