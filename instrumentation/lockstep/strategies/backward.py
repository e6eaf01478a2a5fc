"""Marks backwards: stands around ``torch.autograd.backward``.

A hook on the graph costs ten times as much, for it is hung anew in every step; ``hooks`` says
where one is needed all the same. ``lockstep._native`` holds the same listener in C.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch

from lockstep.recorder.native import compiled
from lockstep.recorder.phases import BACKWARD, OTHER
from lockstep.recorder.recorder import StepRecorder


class Listener:
    """Takes the place of ``torch.autograd.backward``; what it knows is read in every step.

    Args:
        backward: code of the phase that it marks.
        other: code of the one after it.

    Attributes:
        original: what does the work.
        recorder: who is told.
        thread: whose calls count.
        inside: whether a backward that is marked runs now.
        nests: whether one has been seen within another, as reentrant checkpoints do.
        calls: backwards marked so far; one that does not count came by another way in.
        ended: called in place of the mark at the end of the backward that runs now.
    """

    def __init__(self, backward: int, other: int) -> None:
        self._backward, self._other = backward, other
        self.original: Callable[..., Any] | None = None
        self.recorder: StepRecorder | None = None
        self.thread = self.calls = 0
        self.inside = self.nests = False
        self.ended: list[Callable[[], None]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Does what the original does."""
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
        for tell in ended:  # not of one that failed while it waited: it waits still, as it seems
            tell()
        return result


listener: Listener = (Listener if compiled is None else compiled.Listener)(BACKWARD, OTHER)


def listen(recorder: StepRecorder) -> None:
    """Marks with this recorder what the calling thread does from now on."""
    listener.recorder, listener.thread = recorder, threading.get_ident()
    listener.nests = False
    if listener.original is None:  # once: somebody may have wrapped it again
        listener.original = torch.autograd.backward
        within: Any = torch.autograd
        within.backward = listener
