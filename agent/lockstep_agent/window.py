"""Values of the last seconds, of which the lowest, the mean and the highest are told."""

from collections import deque


class Window:
    """Keeps what is at most so many seconds older than the newest value.

    Args:
        seconds: length of the window.
        most: values kept at most; the oldest go first.
    """

    def __init__(self, seconds: float, most: int = 4096) -> None:
        self._seconds = seconds
        self._kept: deque[tuple[float, float]] = deque(maxlen=most)

    @property
    def size(self) -> int:
        """How many values are in the window."""
        return len(self._kept)

    def add(self, at_seconds: float, value: float) -> None:
        """Adds a value; times rise."""
        self._kept.append((at_seconds, value))
        while self._kept[0][0] < at_seconds - self._seconds:
            self._kept.popleft()

    def lowest(self) -> float:
        """The lowest value; the window must not be empty."""
        return min(value for _, value in self._kept)

    def mean(self) -> float:
        """The mean of the values; the window must not be empty."""
        return sum(value for _, value in self._kept) / len(self._kept)

    def highest(self) -> float:
        """The highest value; the window must not be empty."""
        return max(value for _, value in self._kept)
