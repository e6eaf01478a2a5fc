"""Values of the last seconds, of which the lowest, the mean and the highest are told."""

from collections import deque
from collections.abc import Sequence


class Window:
    """Keeps what came at most so many seconds before the newest, summed up by each addition.

    Args:
        seconds: length of the window.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kept: deque[tuple[float, float, float, float, int]] = deque(maxlen=4096)

    @property
    def is_empty(self) -> bool:
        """Whether no value is in the window."""
        return not self._kept

    def add(self, at_seconds: float, values: Sequence[float]) -> None:
        """Adds values that came together; times rise."""
        if values:
            lowest, highest = min(values), max(values)
            self._kept.append((at_seconds, lowest, highest, sum(values), len(values)))
        while self._kept and self._kept[0][0] < at_seconds - self._seconds:
            self._kept.popleft()

    def lowest(self) -> float:
        """The lowest value; the window must not be empty."""
        return min(part[1] for part in self._kept)

    def mean(self) -> float:
        """The mean of the values; the window must not be empty."""
        return sum(part[3] for part in self._kept) / sum(part[4] for part in self._kept)

    def highest(self) -> float:
        """The highest value; the window must not be empty."""
        return max(part[2] for part in self._kept)
