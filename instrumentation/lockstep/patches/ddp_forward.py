"""Replaces what each forward of DDP does first, to mark the forward without a hook on the model."""

# A hook makes torch call a model by a longer way: seven microseconds or more in a loop whose caches
# hold other things. All forwards of DDP begin in one method.

import functools
from collections.abc import Callable
from typing import Any

from torch.compiler import is_dynamo_compiling

ATTRIBUTE = "_lockstep_forward_begins"
"""Attribute of a watched model: function to call first in each of its forwards."""


def wrap_pre_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls the function of a watched model first, but where dynamo traces it."""

    @functools.wraps(original)
    def call(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling():
            # Not getattr: a module that lacks an attribute takes a microsecond to say so.
            begin = vars(self).get(ATTRIBUTE)
            if begin is not None:
                begin()
        return original(self, *inputs, **kwargs)

    return call
