"""A timer for work that a collector does less often than it runs."""

import time


class Due:
    """Is due at once, and again each time its interval has passed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next_seconds = time.monotonic()

    def is_due(self) -> bool:
        """Whether the interval has passed; True starts the next interval."""
        now = time.monotonic()
        if now < self._next_seconds:
            return False
        self._next_seconds = now + self._seconds
        return True
