"""Times functional collectives: tensor and sequence parallel layers, experts, compiled code.

One operator launches them and another waits for them, from Python or from a compiled graph. Both
call what an operator holds in its ``_op``, which is replaced.
"""

# A kernel in the dispatcher would be the public way. It seems to hold the GIL while it waits: with
# wait_tensor and all_reduce overridden, a run over gloo hung for good.

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from lockstep.patches import waits
from lockstep.patches.collectives import size_bytes_of
from lockstep.patches.points import GROUP_RESOLVER, Wrapper, find_or_report
from lockstep.recorder.phases import BACKWARD, FORWARD, NOT_WAITING

KINDS = {
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
"""Operators of ``torch.ops._c10d_functional`` and their kinds as in the catalogue."""
KINDS_WITH_GRAPH = {
    name: KINDS[name]
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
}
"""Operators of ``torch.ops._c10d_functional_autograd``."""

# Names of the published traces for collectives inside forward and backward, where layers are split.
_OPERATIONS = {
    "all_reduce": "tensor-all-reduce",
    "all_gather": "tensor-all-gather",
    "reduce_scatter": "tensor-reduce-scatter",
}
_LAYER_PHASES = frozenset({FORWARD, BACKWARD})
# A loop may launch collectives that it never waits for: the memory for them is bounded.
_MAX_LAUNCHED = 4096

# Kind, bytes and number of ranks by address of the result, until it is waited for.
_launched: dict[int, tuple[str, int, int | None]] = {}


def wrap_launch(kind: str) -> Wrapper:
    """Remembers what an operator launches, for the one that waits."""
    return partial(_launching, _launch, kind)


def wrap_launch_with_graph(kind: str) -> Wrapper:
    """The same for an operator that is differentiated in C++; its backward waits there, unseen."""
    return partial(_launching, _launch_with_graph, kind)


def wrap_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    """Times the operator that waits for a launched collective."""

    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not _has_memory(tensor):
            return original(tensor, *args, **kwargs)
        launched = waits.run("collectives", _take_launched, tensor)
        kind, size_bytes, ranks = launched or (None, 0, None)
        interrupted = waits.begin()
        try:
            return original(tensor, *args, **kwargs)
        finally:
            op = _OPERATIONS.get(kind or "") if interrupted in _LAYER_PHASES else None
            waits.end(interrupted, kind, size_bytes, op=op, ranks=ranks)

    return call


def _launching(
    launch: Callable[..., Any], kind: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        waits.run("collectives", launch, kind, args, kwargs, result)
        return result

    return call


def _launch(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int | None:
    ranks = _num_ranks(args, kwargs)
    _remember(kind, args[0] if args else None, result, ranks)
    return ranks


def _launch_with_graph(
    kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    ranks = _launch(kind, args, kwargs, result)
    node = result.grad_fn if _has_memory(result) else None
    if node is not None:
        size_bytes = max(size_bytes_of(args[0]), size_bytes_of(result))
        _time_backward(node, kind, size_bytes, ranks)


def _take_launched(tensor: Any) -> tuple[str, int, int | None] | None:
    return _launched.pop(tensor.data_ptr(), None)


def _time_backward(node: Any, kind: str, size_bytes: int, ranks: int | None) -> None:
    interrupted = NOT_WAITING

    def begin(*_: Any) -> None:
        nonlocal interrupted
        interrupted = waits.begin()

    def end(*_: Any) -> None:
        waits.end(interrupted, kind, size_bytes, ranks=ranks)

    node.register_prehook(begin)
    node.register_hook(end)


def _has_memory(value: Any) -> bool:
    """Whether it is a plain tensor, not its proxy while a graph is traced."""
    return type(value) is torch.Tensor


def _num_ranks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Ranks of the group, whose name is the last argument of each operator."""
    name = kwargs.get("group_name", args[-1] if args else None)
    group_by_name = _group_by_name()
    if group_by_name is None or not isinstance(name, str):
        return None
    try:
        return int(group_by_name(name).size())
    except (LookupError, RuntimeError, ValueError):
        return None


@cache  # looking it up costs as much as a small collective
def _group_by_name() -> Any:
    return find_or_report(GROUP_RESOLVER)


def _remember(kind: str, sent: Any, result: Any, ranks: int | None) -> None:
    """Keeps kind and size of a collective by the address of its result, which is waited for."""
    tensors = result if isinstance(result, (list, tuple)) else (result,)
    for tensor in tensors:
        if _has_memory(tensor):
            if len(_launched) > _MAX_LAUNCHED:
                _launched.clear()
            size_bytes = max(size_bytes_of(sent) // len(tensors), size_bytes_of(tensor))
            _launched[tensor.data_ptr()] = (kind, size_bytes, ranks)
