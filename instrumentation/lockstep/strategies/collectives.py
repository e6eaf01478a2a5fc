"""Times what Python asks of ``torch.distributed``: FSDP2, HSDP, clipping, expert counts, own code.

FSDP2's all-gathers and reduce-scatters and HSDP's all-reduces go through these functions, so no
custom communication object is needed, which would take the place of the user's.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from lockstep.recorder.phases import NOT_WAITING
from lockstep.strategies import waits

P = ParamSpec("P")
R = TypeVar("R")

# Kinds as in the catalogue; None is waited for and not counted. The non-blocking isend and irecv
# are left alone: torch tells them apart by identity.
_KINDS = {
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_gather": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "_broadcast_coalesced": "broadcast",
    "send": "send_recv",
    "recv": "send_recv",
    "reduce": None,
    "gather": None,
    "scatter": None,
    "barrier": None,
}
# What they are when the parameters and gradients of a sharded model travel.
_OPERATIONS = {"all_gather": "params-sync", "reduce_scatter": "grads-sync"}


def size_bytes_of(value: Any) -> int:
    """Bytes of a tensor, or of all tensors of a list."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (list, tuple)):
        return sum(size_bytes_of(part) for part in value)
    return 0


def _ranks_in(arguments: tuple[Any, ...]) -> int | None:
    """Ranks of the group among a collective's arguments, or of the whole job."""
    for one in arguments:
        if isinstance(one, dist.ProcessGroup):
            return one.size()
    return dist.get_world_size() if dist.is_initialized() else None


def _timed(original: Callable[P, R], kind: str | None) -> Callable[P, R]:
    op = _OPERATIONS.get(kind or "")

    @functools.wraps(original)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        interrupted = waits.begin()
        try:
            return original(*args, **kwargs)
        finally:
            if interrupted != NOT_WAITING:
                parts = (*args, *kwargs.values())
                size = max((size_bytes_of(part) for part in parts), default=0)
                waits.end(interrupted, kind, size, op=op, ranks=_ranks_in(parts))

    call.lockstep = True  # type: ignore[attr-defined]  # so that it is done once
    return call


def watch_collectives() -> None:
    """Times the blocking collectives from now on, once in a process.

    One that is started with ``async_op`` is counted, and its ``wait()`` is not seen.
    """
    for name, kind in _KINDS.items():
        original = getattr(dist, name, None)
        if original is None or hasattr(original, "lockstep"):
            continue
        timed = _timed(original, kind)
        setattr(dist, name, timed)
        if getattr(distributed_c10d, name, None) is original:
            setattr(distributed_c10d, name, timed)
