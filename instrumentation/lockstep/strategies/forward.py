"""Marks the begin of a forward: for DDP in its class, for any other model by a hook."""

from collections.abc import Callable

import torch
from torch.nn.parallel import DistributedDataParallel

from lockstep.patches import backward, ddp_forward
from lockstep.patches.install import install
from lockstep.patches.points import ORIGINAL
from lockstep.patches.table import DDP_FORWARD
from lockstep.recorder.interface import Ignored, StepRecorder
from lockstep.recorder.native import compiled
from lockstep.recorder.phases import FORWARD


class Forward:
    """Marks the beginning of a forward; ``lockstep._native`` holds the same in C.

    Args:
        backwards: listener that marks backwards from outside.
        phase: code of the phase that begins.
        choose: called with whether a backward was marked from outside since the last forward, where
            it decides between the listener and a hook on the graph.

    Attributes:
        on_graph: whether a hook on the graph marks the backward, in place of the listener.
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
        self._calls_before = -1  # backwards counted at the last forward
        self.on_graph = False

    def __call__(self) -> None:
        """Called when a forward begins."""
        self._recorder.enter_code(self._phase)
        calls, calls_before = self._backwards.calls, self._calls_before
        self._calls_before = calls
        if calls == calls_before or self.on_graph:
            self._choose(calls != calls_before)

    def __reduce__(self) -> tuple[type[Ignored], tuple[()]]:
        return Ignored, ()


def new_forward(recorder: StepRecorder, choose: Callable[[bool], None]) -> Forward:
    """A mark of forwards for this recorder, in C where it was compiled."""
    kind = Forward if compiled is None else compiled.Forward
    forward: Forward = kind(recorder, backward.listener, FORWARD, choose)
    return forward


def call_before_ddp_forward(model: torch.nn.Module, begin: Callable[[], object]) -> bool:
    """Calls ``begin`` first in each forward of DDP, but where dynamo traces it.

    Returns:
        False, and nothing is done, for other models, on a torch whose DDP begins in another way,
        and where the user's own hooks would come before it.
    """
    if not isinstance(model, DistributedDataParallel) or model._forward_pre_hooks:  # noqa: SLF001  # torch has no other way to ask
        return False
    install("ddp")
    if not hasattr(getattr(DistributedDataParallel, DDP_FORWARD.attribute, None), ORIGINAL):
        return False
    setattr(model, ddp_forward.ATTRIBUTE, begin)
    return True
