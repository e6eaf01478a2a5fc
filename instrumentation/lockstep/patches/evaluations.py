"""Begins an evaluation where the loop calls ``eval()`` of a watched model or of a part of it.

What runs without gradients from then on is evaluation, until a forward has gradients again.
"""

import functools
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch

from lockstep.patches import waits
from lockstep.recorder.phases import EVAL, INIT

ATTRIBUTE = "_lockstep_forward"
"""Attribute of a watched module: marks its forwards."""


_newest: list["ref[torch.nn.Module]"] = []  # what is evaluated, or was


def is_over() -> bool:
    """Whether what was evaluated last trains again; what a loop fetches is for training then."""
    module = _newest[0]() if _newest else None
    return torch.is_grad_enabled() and (module is None or module.training)


def wrap_eval(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Tells the watch of the module."""

    @functools.wraps(original)
    def call(self: Any) -> Any:
        forward, recorder = vars(self).get(ATTRIBUTE), waits.recorder_of_this_thread()
        # A copy of a watched module, such as a moving average, has a mark that does nothing.
        if recorder is not None and hasattr(forward, "evaluates"):
            forward.evaluates, _newest[:] = True, [ref(self)]
            if recorder.phase != INIT:
                recorder.enter_code(EVAL)
        return original(self)

    return call
