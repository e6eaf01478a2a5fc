"""The table of wrappers: which attribute of one holds the model, and what wraps a model."""

# A hook makes torch call a model by a longer way: seven microseconds or more in a loop whose caches
# hold other things. All forwards of DDP begin in one method.
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn.parallel import DistributedDataParallel

BEGIN_ATTRIBUTE = "_lockstep_forward_begins"
"""Attribute of a watched model: function to call first in each of its forwards."""


def wrap_pre_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls the function of a watched model first, but where dynamo traces it."""

    @functools.wraps(original)
    def call(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling():
            # Not getattr: a module that lacks an attribute takes a microsecond to say so.
            begin = vars(self).get(BEGIN_ATTRIBUTE)
            if begin is not None:
                begin()
        return original(self, *inputs, **kwargs)

    return call


# Attribute by which a wrapper holds the module that it calls: Fabric, torch.compile, FSDP1; DDP,
# DeepSpeed and most others, a wrapper of the user's among them, name it ``module``.
_INSIDE = ("_forward_module", "_orig_mod", "_fsdp_wrapped_module", "module")
# Of a wrapper that calls this module from methods of many names, past its own ``__call__``.
_CALLED = "_forward_module"


def called_by(model: nn.Module) -> nn.Module:
    """The module whose call is the forward, whichever method of the wrapper the loop calls."""
    while isinstance(inner := getattr(model, _CALLED, None), nn.Module):
        model = inner
    return model


def layers(model: nn.Module) -> Iterator[nn.Module]:
    """The model and what it wraps, from the outside in."""
    yield model
    children = dict(model.named_children())
    inner = next((children[name] for name in _INSIDE if name in children), None)
    if inner is not None:
        yield from layers(inner)


def ddp_in(model: nn.Module) -> DistributedDataParallel | None:
    """DDP among the layers of a model."""
    return next((m for m in layers(model) if isinstance(m, DistributedDataParallel)), None)


def ddp_around(model: nn.Module) -> DistributedDataParallel | None:
    """DDP whose forward runs now, and in it that of the model; called from a hook of the model."""
    frame = sys._getframe()  # noqa: SLF001  # torch tells no module what wraps it
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]  # ends the loop
        if frame.f_code.co_name == "forward":
            caller = frame.f_locals.get("self")
            if isinstance(caller, DistributedDataParallel) and model in layers(caller):
                return caller
    return None


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile wraps the module, or has compiled its call in place."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
