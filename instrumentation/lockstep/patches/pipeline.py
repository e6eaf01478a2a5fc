"""Times a pipeline stage by stage: chunks of forward and backward, and the waits between them.

The bubble is what a rank waits for activations and gradients, so it is synchronisation, of the kind
send_recv; everything else between the first chunk and the last is the rank's own work.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from lockstep.patches import waits
from lockstep.patches.collectives import Started, size_bytes_of, started
from lockstep.patches.points import Wrapper
from lockstep.recorder import operation_listeners as operations_tap
from lockstep.recorder.operation_listeners import Operation
from lockstep.recorder.phases import BACKWARD, FORWARD, OTHER

CHUNKS = {
    "forward_one_chunk": (FORWARD, "forward-compute"),
    "backward_one_chunk": (BACKWARD, "backward-compute"),
    "backward_weight_one_chunk": (BACKWARD, "backward-compute"),
}
"""Methods of a stage that compute: phase, and name in the published traces."""
TRANSFERS = {
    "get_fwd_recv_ops": "forward-recv",
    "get_fwd_send_ops": "forward-send",
    "get_bwd_recv_ops": "backward-recv",
    "get_bwd_send_ops": "backward-send",
}
"""Methods of a stage that list its transfers, and their names in the published traces."""


# Torch keeps none for long: what it drops must not stay alive here.
_by_operation: WeakKeyDictionary[Any, Started] = WeakKeyDictionary()


def wrap_schedule_step(enter_code: Callable[[int], None]) -> Wrapper:
    """Ends the last phase when the schedule's step is over."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            waits.include_this_thread()
            try:
                return original(*args, **kwargs)
            finally:
                enter_code(OTHER)

        return step

    return wrap


def wrap_chunk(enter_code: Callable[[int], None], method: str, stage_index: int) -> Wrapper:
    """Enters the phase of a chunk, and reports its operation while somebody listens."""
    phase, op = CHUNKS[method]

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def chunk(micro_batch: int, *args: Any, **kwargs: Any) -> Any:
            enter_code(phase)
            if operations_tap.tap is None:
                return original(micro_batch, *args, **kwargs)
            start_ns = time.monotonic_ns()
            result = original(micro_batch, *args, **kwargs)
            operation = Operation(op, start_ns, time.monotonic_ns(), micro_batch, stage_index)
            operations_tap.tap(operation)
            return result

        return chunk

    return wrap


def wrap_transfers(method: str, stage_index: int) -> Wrapper:
    """Remembers name and size of each transfer that a stage is about to start."""
    name = TRANSFERS[method]

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def list_operations(micro_batch: int) -> Any:
            operations = original(micro_batch)
            waits.run("pipeline", _remember, operations, name, micro_batch, stage_index)
            return operations

        return list_operations

    return wrap


def wrap_start_transfers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Hands each transfer from its operation on to the work that is waited for."""

    def start(operations: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        works = original(operations, *args, **kwargs)
        waits.run("pipeline", _hand_on, operations, works)
        return works

    return start


def _remember(operations: Sequence[Any], name: str, micro_batch: int, stage_index: int) -> None:
    for operation in operations:
        _by_operation[operation] = Started(
            "send_recv",
            size_bytes_of(operation.tensor),
            ranks=2,
            op=name,
            micro_batch=micro_batch,
            chunk=stage_index,
        )


def _hand_on(operations: Sequence[Any], works: Sequence[Any]) -> None:
    if len(works) == len(operations):  # NCCL may give one for all
        for operation, work in zip(operations, works, strict=True):
            if operation in _by_operation:
                started[work] = _by_operation.pop(operation)
