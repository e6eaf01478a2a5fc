"""A timer for work that a collector does less often than it runs."""

import time
from collections.abc import Callable


class Due:
    """Is due at once, and again each time its interval has passed.

    Args:
        seconds: the interval.
        clock: monotonic, in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._next_seconds = clock()

    def is_due(self) -> bool:
        """Whether the interval has passed; True starts the next interval."""
        now = self._clock()
        if now < self._next_seconds:
            return False
        self._next_seconds = now + self._seconds
        return True
