"""Begins an evaluation where the loop calls ``eval()`` of a watched model or of a part of it.

What runs without gradients from then on is evaluation, until a forward has gradients again.
"""

import functools
from collections.abc import Callable
from typing import Any

from lockstep.patches import waits
from lockstep.recorder.phases import EVAL, INIT

ATTRIBUTE = "_lockstep_forward"
"""Attribute of a watched module: marks its forwards."""


def wrap_eval(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Tells the watch of the module."""

    @functools.wraps(original)
    def call(self: Any) -> Any:
        forward, recorder = vars(self).get(ATTRIBUTE), waits.recorder_of_this_thread()
        # A copy of a watched module, such as a moving average, has a mark that does nothing.
        if recorder is not None and hasattr(forward, "evaluates"):
            forward.evaluates = True
            if recorder.phase != INIT:
                recorder.enter_code(EVAL)
        return original(self)

    return call
