"""Counts the runs of Python's garbage collector and the time they take from the loop."""

import gc
import time
import weakref
from typing import Any


class Pauses:
    """Counts from its creation until it is released or garbage itself."""

    def __init__(self) -> None:
        self.collections = self.nanoseconds = 0
        self._began_ns = 0
        reference = weakref.ref(self)  # gc.callbacks would keep it, and its page, for ever

        def count_collection(phase: str, _info: dict[str, Any]) -> None:
            pauses = reference()
            if pauses is not None:
                pauses.count(phase)

        gc.callbacks.append(count_collection)
        self._remove_callback = weakref.finalize(self, _remove, count_collection)

    def count(self, phase: str) -> None:
        """Counts the begin (``start``) or the end of a run."""
        if phase == "start":
            self._began_ns = time.monotonic_ns()
        elif self._began_ns:
            self.collections += 1
            self.nanoseconds += time.monotonic_ns() - self._began_ns

    def release(self) -> None:
        """Stops counting."""
        self._remove_callback()


def _remove(callback: Any) -> None:
    if callback in gc.callbacks:
        gc.callbacks.remove(callback)
