"""Times functional collectives: tensor and sequence parallel layers, experts, compiled code.

They are launched by one operator and waited for by another, from Python or from a compiled graph.
Both call what an operator holds in ``_op``, and there we stand; a kernel of our own in the
dispatcher would hold the GIL while it waits, and hangs with gloo.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.distributed import distributed_c10d

from lockstep.recorder.phases import BACKWARD, FORWARD, NOT_WAITING
from lockstep.strategies import waits
from lockstep.strategies.collectives import size_bytes_of

log = logging.getLogger("lockstep")

_KINDS = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
# What they are inside forward and backward, where layers are cut among ranks.
_OPERATIONS = {
    "all_reduce": "tensor-all-reduce",
    "all_gather": "tensor-all-gather",
    "reduce_scatter": "tensor-reduce-scatter",
}
_IN_LAYERS = frozenset({FORWARD, BACKWARD})
_MOST_LAUNCHED = 4096  # launched and never waited for: bounded, whatever the job does

_launched: dict[int, tuple[str, int, int | None]] = {}


def _real(value: Any) -> bool:
    """Whether it is a tensor with memory, not one that stands for it while a graph is traced."""
    return type(value) is torch.Tensor


def _ranks_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Ranks of the group, which operators take by its name, last."""
    name = kwargs.get("group_name", args[-1] if args else None)
    if not isinstance(name, str):
        return None
    named: Any = distributed_c10d
    try:
        return int(named._resolve_process_group(name).size())  # noqa: SLF001  # its only name
    except (LookupError, RuntimeError, ValueError):
        return None


def _remember(kind: str, given: Any, result: Any, ranks: int | None) -> None:
    parts = result if isinstance(result, (list, tuple)) else (result,)
    for part in parts:
        if _real(part):
            if len(_launched) > _MOST_LAUNCHED:
                _launched.clear()
            larger = max(size_bytes_of(given) // len(parts), size_bytes_of(part))
            _launched[part.data_ptr()] = (kind, larger, ranks)


def _launching(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        ranks = _ranks_in(args, kwargs)
        _remember(kind, args[0] if args else None, result, ranks)
        return result

    return call


def _launching_with_graph(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Of an operator that is differentiated in C++, whose backward waits out of Python's sight."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        ranks = _ranks_in(args, kwargs)
        _remember(kind, args[0] if args else None, result, ranks)
        node = result.grad_fn if _real(result) else None
        if node is not None:
            larger = max(size_bytes_of(args[0]), size_bytes_of(result))
            _watch_backward(node, kind, larger, ranks)
        return result

    return call


def _watch_backward(node: Any, kind: str, size_bytes: int, ranks: int | None) -> None:
    interrupted = NOT_WAITING

    def begins(*_: Any) -> None:
        nonlocal interrupted
        interrupted = waits.begin()

    def ended(*_: Any) -> None:
        waits.end(interrupted, kind, size_bytes, ranks=ranks)

    node.register_prehook(begins)
    node.register_hook(ended)


def _waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not _real(tensor):
            return original(tensor, *args, **kwargs)
        kind, size_bytes, ranks = _launched.pop(tensor.data_ptr(), (None, 0, None))
        interrupted = waits.begin()
        try:
            return original(tensor, *args, **kwargs)
        finally:
            op = _OPERATIONS.get(kind or "") if interrupted in _IN_LAYERS else None
            waits.end(interrupted, kind, size_bytes, op=op, ranks=ranks)

    return call


def _put(operators: Any, name: str, wrap: Callable[[Callable[..., Any]], Any]) -> None:
    packet = getattr(operators, name, None)
    for holder in (packet, getattr(packet, "default", None)):
        original = getattr(holder, "_op", None)
        if holder is not None and original is not None and not hasattr(original, "lockstep"):
            timed = wrap(original)
            timed.lockstep = True
            holder._op = timed  # noqa: SLF001  # one place that eager and compiled code share


def watch_functional_collectives() -> None:
    """Times functional collectives on the CPU from now on, once in a process."""
    functional, with_graph = torch.ops._c10d_functional, torch.ops._c10d_functional_autograd  # noqa: SLF001  # torch has no public name for them
    if not hasattr(functional.wait_tensor, "_op"):
        log.warning(
            "torch %s keeps operators elsewhere; tensor-parallel waits count as work",
            torch.__version__,
        )
        return
    for name, kind in _KINDS.items():
        _put(functional, name, partial(_launching, kind))
        _put(with_graph, name, partial(_launching_with_graph, kind))
    _put(functional, "wait_tensor", _waiting)
