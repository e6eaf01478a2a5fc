"""What is done less often than its collector runs."""

import time
from collections.abc import Callable


class Due:
    """Says whether so many seconds have gone by since it last said so; at first it is due.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._next_seconds = clock()

    def is_due(self) -> bool:
        """Whether it is time; asking when it is begins the next round."""
        now = self._clock()
        if now < self._next_seconds:
            return False
        self._next_seconds = now + self._seconds
        return True
