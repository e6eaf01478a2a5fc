"""Times a pipeline stage by stage: chunks of forward and backward, and the waits between them.

The bubble is what a rank waits for activations and gradients, so it is synchronisation, of the kind
send_recv; everything else between the first chunk and the last is the rank's own work.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from lockstep.patches import waits
from lockstep.patches.collectives import size_bytes_of
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


class _Transfer:
    """A send or receive: its operation and size, reported when it is waited for."""

    __slots__ = ("chunk", "micro_batch", "name", "size_bytes")

    def __init__(self, name: str, micro_batch: int, chunk: int, size_bytes: int) -> None:
        self.name, self.micro_batch, self.chunk = name, micro_batch, chunk
        self.size_bytes = size_bytes


# Torch keeps neither for long: what it drops must not stay alive here.
_by_operation: WeakKeyDictionary[Any, _Transfer] = WeakKeyDictionary()
_by_work: WeakKeyDictionary[Any, _Transfer] = WeakKeyDictionary()


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
        size_bytes = size_bytes_of(operation.tensor)
        _by_operation[operation] = _Transfer(name, micro_batch, stage_index, size_bytes)


def _hand_on(operations: Sequence[Any], works: Sequence[Any]) -> None:
    if len(works) == len(operations):  # NCCL may give one for all
        for operation, work in zip(operations, works, strict=True):
            if operation in _by_operation:
                _by_work[work] = _by_operation.pop(operation)


def _take_transfer(work: Any) -> _Transfer | None:
    return _by_work.pop(work, None)


def wrap_wait_transfers(_original: Callable[..., Any]) -> Callable[..., Any]:
    """Does what torch's own function does, a wait for each work, and times each by itself."""

    def wait(work: Sequence[Any]) -> None:
        for transfer_work in work:
            _wait_for(transfer_work)

    return wait


def _wait_for(work: Any) -> None:
    transfer = waits.run("pipeline", _take_transfer, work)
    interrupted = waits.begin()
    try:
        work.wait()
    finally:
        if transfer is None:
            waits.end(interrupted, "send_recv", 0, ranks=2)
        else:
            waits.end(
                interrupted,
                "send_recv",
                transfer.size_bytes,
                ranks=2,
                op=transfer.name,
                micro_batch=transfer.micro_batch,
                chunk=transfer.chunk,
            )
