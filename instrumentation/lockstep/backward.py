"""Marks the backward of a process of its own: stands around ``torch.autograd.backward``.

A hook on the graph costs ten times as much, for it is hung anew in every step, and is needed only
where something happens inside the backward that is to be told apart: see ``hooks``.
"""

import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from lockstep.disabled import Disabled
from lockstep.phases import BACKWARD, OTHER


@dataclass(slots=True)
class _Listener:
    """Who is told, and of which thread's calls."""

    monitor: Disabled = field(default_factory=Disabled)
    thread: int = 0
    inside: bool = False  # reentrant checkpoints call it again from within
    calls: int = 0


_listener = _Listener()


def listen(monitor: Disabled) -> None:
    """Marks what the calling thread does for this monitor from now on."""
    _listener.monitor, _listener.thread = monitor, threading.get_ident()
    original: Any = torch.autograd.backward
    if hasattr(original, "lockstep"):
        return

    def backward(*args: Any, **kwargs: Any) -> None:
        listener = _listener
        if listener.inside or threading.get_ident() != listener.thread:
            original(*args, **kwargs)
            return
        listener.inside = True
        listener.calls += 1
        listener.monitor.enter(BACKWARD)
        try:
            original(*args, **kwargs)
        finally:
            listener.inside = False
            listener.monitor.enter(OTHER)

    backward.lockstep = True  # type: ignore[attr-defined]  # so that it is done once
    torch.autograd.backward = backward


def calls() -> int:
    """Backwards marked so far; one that does not count came by another way in."""
    return _listener.calls
