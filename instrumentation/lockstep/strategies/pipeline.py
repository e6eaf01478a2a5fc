"""Times a pipeline stage by stage: chunks of forward and backward, and the waits between them.

The bubble is what a rank waits for activations and gradients, so it is synchronisation, of the kind
send_recv; everything else between the first chunk and the last is the rank's own work.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.distributed.pipelining import schedules

from lockstep.monitor.live import LiveMonitor
from lockstep.recorder import operation_listeners as operations_tap
from lockstep.recorder.operation_listeners import Operation
from lockstep.recorder.phases import BACKWARD, FORWARD, OTHER
from lockstep.strategies import waits
from lockstep.strategies.collectives import size_bytes_of

log = logging.getLogger("lockstep")

# What a stage computes, in which phase, and its name in the published traces.
_CHUNKS = {
    "forward_one_chunk": (FORWARD, "forward-compute"),
    "backward_one_chunk": (BACKWARD, "backward-compute"),
    "backward_weight_one_chunk": (BACKWARD, "backward-compute"),
}
_TRANSFERS = {
    "get_fwd_recv_ops": "forward-recv",
    "get_fwd_send_ops": "forward-send",
    "get_bwd_recv_ops": "backward-recv",
    "get_bwd_send_ops": "backward-send",
}


class _Transfer:
    """What a started send or receive brings where, told when it is waited for."""

    __slots__ = ("chunk", "micro_batch", "name", "size_bytes")

    def __init__(self, name: str, micro_batch: int, chunk: int, size_bytes: int) -> None:
        self.name, self.micro_batch, self.chunk = name, micro_batch, chunk
        self.size_bytes = size_bytes


_by_operation: WeakKeyDictionary[Any, _Transfer] = WeakKeyDictionary()
_by_work: WeakKeyDictionary[Any, _Transfer] = WeakKeyDictionary()


def watch_schedule(monitor: LiveMonitor, schedule: Any) -> None:
    """Tells a monitor of all that a schedule of ``torch.distributed.pipelining`` does."""
    stages = getattr(schedule, "_stages", None) or [getattr(schedule, "_stage", None)]
    if not all(hasattr(stage, "forward_one_chunk") for stage in stages):
        log.warning(
            "schedule %s is none of torch.distributed.pipelining; its stages are not seen",
            type(schedule).__name__,
        )
        return
    _watch_transfers()
    for stage in stages:
        for method, (phase, op) in _CHUNKS.items():
            setattr(stage, method, _chunk(monitor, getattr(stage, method), phase, op, stage))
        for method, op in _TRANSFERS.items():
            setattr(stage, method, _named(getattr(stage, method), op, stage))
    schedule.step = _step(monitor, schedule.step)


def _step(monitor: LiveMonitor, original: Callable[..., Any]) -> Callable[..., Any]:
    def step(*args: Any, **kwargs: Any) -> Any:
        waits.this_thread_too()
        try:
            return original(*args, **kwargs)
        finally:
            monitor.enter_code(OTHER)

    return step


def _chunk(
    monitor: LiveMonitor, original: Callable[..., Any], phase: int, op: str, stage: Any
) -> Callable[..., Any]:
    def chunk(micro_batch: int, *args: Any, **kwargs: Any) -> Any:
        monitor.enter_code(phase)
        if operations_tap.tap is None:
            return original(micro_batch, *args, **kwargs)
        begun = time.monotonic_ns()
        result = original(micro_batch, *args, **kwargs)
        operation = Operation(op, begun, time.monotonic_ns(), micro_batch, stage.stage_index)
        operations_tap.tap(operation)
        return result

    return chunk


def _named(original: Callable[..., Any], name: str, stage: Any) -> Callable[..., Any]:
    def operations(micro_batch: int) -> Any:
        started = original(micro_batch)
        for one in started:
            size_bytes = size_bytes_of(one.tensor)
            _by_operation[one] = _Transfer(name, micro_batch, stage.stage_index, size_bytes)
        return started

    return operations


def _watch_transfers() -> None:
    """Stands around the two functions of every schedule that start transfers and wait for them."""
    within: Any = schedules  # every schedule calls the two by these names
    start, wait = getattr(within, "_batch_p2p", None), getattr(within, "_wait_batch_p2p", None)
    if start is None or wait is None:
        log.warning("torch %s waits elsewhere; a stage's waits count as work", torch.__version__)
        return
    if hasattr(wait, "lockstep"):
        return

    def started(operations: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        works = start(operations, *args, **kwargs)
        if len(works) == len(operations):  # NCCL may give one for all
            for operation, work in zip(operations, works, strict=True):
                if operation in _by_operation:
                    _by_work[work] = _by_operation.pop(operation)
        return works

    def waited(works: Sequence[Any]) -> None:
        for work in works:
            transfer = _by_work.pop(work, None)
            interrupted = waits.begin()
            try:
                work.wait()
            finally:
                if transfer is None:
                    waits.end(interrupted, "send_recv", 0, ranks=2)
                else:
                    place = {"micro_batch": transfer.micro_batch, "chunk": transfer.chunk}
                    place["ranks"] = 2
                    waits.end(
                        interrupted, "send_recv", transfer.size_bytes, op=transfer.name, **place
                    )

    waited.lockstep = True  # type: ignore[attr-defined]  # so that it is done once
    within._batch_p2p = started  # noqa: SLF001  # see above
    within._wait_batch_p2p = waited  # noqa: SLF001  # see above
