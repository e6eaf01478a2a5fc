"""Counts the runs of Python's garbage collector and the time they take from the loop."""

import gc
import time
import weakref
from typing import Any


class Pauses:
    """Hangs on the collector until it is released or forgotten.

    Attributes:
        collections: runs so far.
        nanoseconds: in them.
    """

    def __init__(self) -> None:
        self.collections = self.nanoseconds = 0
        self._began_ns = 0
        me = weakref.ref(self)

        def tell(phase: str, _info: dict[str, Any]) -> None:
            pauses = me()
            if pauses is not None:
                pauses.told(phase)

        gc.callbacks.append(tell)
        self._forgotten = weakref.finalize(self, _remove, tell)

    def told(self, phase: str) -> None:
        """The collector says that a run begins or ends."""
        if phase == "start":
            self._began_ns = time.monotonic_ns()
        elif self._began_ns:
            self.collections += 1
            self.nanoseconds += time.monotonic_ns() - self._began_ns

    def release(self) -> None:
        """Lets go of the collector."""
        self._forgotten()


def _remove(callback: Any) -> None:
    if callback in gc.callbacks:
        gc.callbacks.remove(callback)
