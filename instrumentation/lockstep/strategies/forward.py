"""Marks forwards: by a hook on the model, or for DDP by what its class does first.

A hook makes torch call a model by a longer way, seven microseconds or more in a loop whose caches
hold other things. All of DDP's forwards begin in one method, which is stood around once.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.parallel import DistributedDataParallel

from lockstep.recorder.native import compiled
from lockstep.recorder.phases import FORWARD
from lockstep.recorder.recorder import Ignored, StepRecorder
from lockstep.strategies import backward

_FIRST = "_pre_forward"  # what a forward of DDP does first; torch has no other name for it


class Forward:
    """Marks the beginning of a forward; ``lockstep._native`` holds the same in C.

    Args:
        recorder: who is told.
        backwards: marks backwards from outside.
        phase: code of the phase that begins.
        choose: told whether a backward was marked from outside since the last forward, where that
            is to be looked into.

    Attributes:
        on_graph: whether a hook on the graph stands for what is marked from outside.
    """

    def __init__(
        self,
        recorder: StepRecorder,
        backwards: backward.Listener,
        phase: int,
        choose: Callable[[bool], None],
    ) -> None:
        self._recorder, self._backwards, self._phase = recorder, backwards, phase
        self._choose = choose
        self._marked = -1  # backwards, at the last forward
        self.on_graph = False

    def __call__(self) -> None:
        """The model is called."""
        self._recorder.enter_code(self._phase)
        calls, marked = self._backwards.calls, self._marked
        self._marked = calls
        if calls == marked or self.on_graph:
            self._choose(calls != marked)

    def __reduce__(self) -> tuple[type[Ignored], tuple[()]]:
        return Ignored, ()


def new_forward(recorder: StepRecorder, choose: Callable[[bool], None]) -> Forward:
    """Marks forwards with this recorder."""
    kind = Forward if compiled is None else compiled.Forward
    forward: Forward = kind(recorder, backward.listener, FORWARD, choose)
    return forward


def stand_in_front(model: torch.nn.Module, begins: Callable[[], object]) -> bool:
    """Calls ``begins`` first in each forward of DDP, but where dynamo looks into it.

    False, and nothing done, for other models, and where hooks of somebody else come before it.
    """
    if not isinstance(model, DistributedDataParallel):
        return False
    kind: Any = DistributedDataParallel
    first = getattr(kind, _FIRST, None)
    if first is None or model._forward_pre_hooks:  # noqa: SLF001  # torch has no other way to ask
        return False
    if not hasattr(kind, "_lockstep_forward_begins"):
        kind._lockstep_forward_begins = None  # noqa: SLF001  # ours, and what a call finds by default
        setattr(kind, _FIRST, _told_of(first))
    watched: Any = model
    watched._lockstep_forward_begins = begins  # noqa: SLF001  # the same
    return True


def _told_of(first: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(first)
    def call(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling():
            begins = self._lockstep_forward_begins
            if begins is not None:
                begins()
        return first(self, *inputs, **kwargs)

    return call
