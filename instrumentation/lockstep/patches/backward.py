"""Replaces ``torch.autograd.backward``, to mark the phase of the backward from outside.

``lockstep._native`` holds the same listener in C.
"""

# A hook on the graph costs ten times as much, for torch takes it off with the graph and it is
# registered anew in every step; ``strategies.hooks`` says where one is needed all the same.

import threading
from collections.abc import Callable
from typing import Any

from lockstep.patches.points import ORIGINAL
from lockstep.recorder.interface import StepRecorder
from lockstep.recorder.native import compiled
from lockstep.recorder.phases import BACKWARD, OTHER


class Listener:
    """Called in the place of ``torch.autograd.backward``; enters these phases around it.

    Attributes:
        thread: identity of the thread whose calls count.
        inside: whether a backward that is marked runs now.
        nests: whether a backward ran within another, as reentrant checkpoints do.
        calls: backwards marked so far; a backward by another function of torch is not counted.
        ended: functions called at the end of the current backward, instead of entering ``other``.
    """

    def __init__(self, backward: int, other: int) -> None:
        self._backward, self._other = backward, other
        self.original: Callable[..., Any] | None = None
        self.recorder: StepRecorder | None = None
        self.thread = self.calls = 0
        self.inside = self.nests = False
        self.ended: list[Callable[[], None]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Result of the original."""
        assert self.original is not None
        assert self.recorder is not None
        if self.inside or threading.get_ident() != self.thread:
            self.nests |= self.inside
            return self.original(*args, **kwargs)
        self.inside = True
        self.calls += 1
        self.recorder.enter_code(self._backward)
        try:
            result = self.original(*args, **kwargs)
        finally:
            self.inside = False
            ended, self.ended = self.ended, []
            if not ended:
                self.recorder.enter_code(self._other)
        # Not after an error while it waited: for the page the rank still waits, as it seems.
        for callback in ended:
            callback()
        return result


_kind: Any = Listener if compiled is None else compiled.Listener
# An instance of the class in C takes no attributes, but its class does.
setattr(_kind, ORIGINAL, property(lambda listener: listener.original))
listener: Listener = _kind(BACKWARD, OTHER)


def wrap_backward(original: Callable[..., Any]) -> Listener:
    """The one listener of the process, in front of the original."""
    listener.original = original
    return listener


def report_to(recorder: StepRecorder) -> None:
    """From now on this recorder takes the backwards of the calling thread."""
    listener.recorder, listener.thread = recorder, threading.get_ident()
    listener.nests = False
