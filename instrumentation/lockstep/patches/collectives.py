"""Times what Python asks of ``torch.distributed``: FSDP2, HSDP, clipping, expert counts, own code.

FSDP2's all-gathers and reduce-scatters and HSDP's all-reduces go through these functions, so no
custom communication object is needed, which would take the place of the user's.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from lockstep.patches import waits
from lockstep.recorder.phases import NOT_WAITING

P = ParamSpec("P")
R = TypeVar("R")

KINDS = {
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
"""Blocking functions of ``torch.distributed`` and their kinds as in the catalogue.

None is waited for and not counted."""
# The non-blocking isend and irecv are left alone, for batch_isend_irecv compares them by identity:
# what is waited for and was not started here is one of them.

# What a collective of a sharded model is for: parameters are gathered, gradients are scattered.
_OPERATIONS = {"all_gather": "params-sync", "reduce_scatter": "grads-sync"}


def size_bytes_of(value: Any) -> int:
    """Bytes of a tensor, or of all tensors of a list."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (list, tuple)):
        return sum(size_bytes_of(part) for part in value)
    return 0


def wrap_collective(kind: str | None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Times a blocking collective, or the start of one whose handle is waited for later."""
    return functools.partial(_timed, kind)


@dataclass(frozen=True, slots=True)
class Started:
    """The operation behind a handle, reported when it is waited for; see ``waits.end``."""

    kind: str | None
    size_bytes: int = 0
    calls: int = 1
    ranks: int | None = None
    op: str | None = None
    micro_batch: int | None = None
    chunk: int | None = None


_UNKNOWN = Started("send_recv", ranks=2)
# Torch keeps handles for as long as it needs them: what it drops must not stay alive here.
started: WeakKeyDictionary[Any, Started] = WeakKeyDictionary()


def wrap_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    """Times the wait for a handle, by whoever waits for it."""

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or (interrupted := waits.begin()) == NOT_WAITING:
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            of = waits.run("collectives", started.pop, self, _UNKNOWN) or _UNKNOWN
            waits.end(
                interrupted,
                of.kind,
                of.size_bytes,
                calls=of.calls,
                ranks=of.ranks,
                op=of.op,
                micro_batch=of.micro_batch,
                chunk=of.chunk,
            )

    return wait


def _timed(kind: str | None, original: Callable[P, R]) -> Callable[P, R]:
    op = _OPERATIONS.get(kind or "")

    @functools.wraps(original)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # Dynamo would trace the clock and break the graph.
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        interrupted = waits.begin()
        try:
            result = original(*args, **kwargs)
            if isinstance(result, dist.Work):
                # It is counted now, and its seconds with its wait.
                started[result] = Started(kind, calls=0, op=op)
            return result
        finally:
            if interrupted != NOT_WAITING:
                arguments = (*args, *kwargs.values())
                sizes = waits.run("collectives", _size_and_ranks, arguments)
                size_bytes, ranks = sizes or (0, None)
                # The wait is over all the same; what has no size is not counted.
                waits.end(interrupted, kind if sizes else None, size_bytes, op=op, ranks=ranks)

    return call


def _size_and_ranks(arguments: tuple[Any, ...]) -> tuple[int, int | None]:
    size_bytes = max((size_bytes_of(argument) for argument in arguments), default=0)
    return size_bytes, _num_ranks(arguments)


def _num_ranks(arguments: tuple[Any, ...]) -> int | None:
    """Ranks of the group among a collective's arguments, or of the whole job."""
    for argument in arguments:
        if isinstance(argument, dist.ProcessGroup):
            return argument.size()
    return dist.get_world_size() if dist.is_initialized() else None
