"""Marks backwards: stands around ``torch.autograd.backward``.

A hook on the graph costs ten times as much, for it is hung anew in every step; ``hooks`` says
where one is needed all the same.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lockstep.disabled import Disabled
from lockstep.phases import BACKWARD, OTHER


@dataclass(slots=True)
class Listener:
    """Who is told of backwards, and what is known of them. Its attributes are read in every step.

    Attributes:
        monitor: who is told.
        thread: whose calls count.
        inside: whether a backward that is marked runs now.
        nests: whether one has been seen within another, as reentrant checkpoints do.
        calls: backwards marked so far; one that does not count came by another way in.
        ended: called in place of the mark at the end of the backward that runs now.
    """

    monitor: Disabled = field(default_factory=Disabled)
    thread: int = 0
    inside: bool = False
    nests: bool = False
    calls: int = 0
    ended: list[Callable[[], None]] = field(default_factory=list)


listener = Listener()


def listen(monitor: Disabled) -> None:
    """Marks what the calling thread does for this monitor from now on."""
    listener.monitor, listener.thread = monitor, threading.get_ident()
    listener.nests = False
    original: Any = torch.autograd.backward
    if hasattr(original, "lockstep"):
        return

    def backward(*args: Any, **kwargs: Any) -> None:
        if listener.inside or threading.get_ident() != listener.thread:
            listener.nests |= listener.inside
            original(*args, **kwargs)
            return
        listener.inside = True
        listener.calls += 1
        listener.monitor.enter(BACKWARD)
        try:
            original(*args, **kwargs)
        finally:
            listener.inside = False
            ended, listener.ended = listener.ended, []
            if not ended:
                listener.monitor.enter(OTHER)
        for tell in ended:  # not of one that failed while it waited: it waits still, as it seems
            tell()

    backward.lockstep = True  # type: ignore[attr-defined]  # so that it is done once
    torch.autograd.backward = backward
