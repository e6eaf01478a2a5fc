"""Begin and end of a rank's wait for others, which every instrumentation point reports.

Threads that are not the loop's (a checkpoint in the background, a loader) wait on their own
account and report nothing.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from lockstep.guard import Parts
from lockstep.patches.points import GRAPH_TASK, find_or_report
from lockstep.recorder import operation_listeners as operations_tap
from lockstep.recorder.interface import LoopCalls, StepRecorder
from lockstep.recorder.operation_listeners import Operation
from lockstep.recorder.phases import NOT_WAITING

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class _Receiver:
    """The monitor that takes reports, and from which threads. A rank waits for one thing a time."""

    monitor: LoopCalls | None = None
    parts: Parts = field(default_factory=Parts)
    recorder: StepRecorder | None = None
    graph_task: Callable[[], int] | None = None
    threads: set[int] = field(default_factory=set)
    since_ns: int = 0


_receiver = _Receiver()


def report_to(monitor: LoopCalls, recorder: StepRecorder, parts: Parts | None = None) -> None:
    """From now on this monitor takes the waits of the calling thread, and of no other."""
    _receiver.monitor, _receiver.recorder, _receiver.parts = monitor, recorder, parts or Parts()
    _receiver.graph_task = find_or_report(GRAPH_TASK)
    _receiver.threads = {threading.get_ident()}


def run(part: str, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Result of what is ours inside a call of torch's; None where it fails, or has failed."""
    return _receiver.parts.run(part, call, *args, **kwargs)


def include_this_thread() -> None:
    """The calling thread runs a part of the step: autograd has threads of its own for a GPU."""
    _receiver.threads.add(threading.get_ident())


def uses_device() -> bool:
    """Whether steps are timed on a device, whose stream waits in place of the host."""
    recorder = _receiver.recorder
    return recorder is not None and recorder.uses_device


def recorder_of_this_thread() -> StepRecorder | None:
    """The recorder, if the calling thread runs the loop; else None."""
    return _receiver.recorder if threading.get_ident() in _receiver.threads else None


def monitor_outside_blocks() -> Any:
    """The monitor, if the calling thread runs the loop and no block holds the phase; else None."""
    recorder = recorder_of_this_thread()
    return None if recorder is None or recorder.held else _receiver.monitor


def monitor_elsewhere() -> Any:
    """The monitor, if the calling thread is none of those that run the loop; else None."""
    return None if threading.get_ident() in _receiver.threads else _receiver.monitor


def _runs_step(receiver: _Receiver) -> bool:
    """Whether the calling thread runs the step; a device has a thread for its backward."""
    if threading.get_ident() in receiver.threads:
        return True
    if receiver.graph_task is None or receiver.graph_task() < 0:
        return False
    include_this_thread()
    return True


def begin() -> int:
    """The rank has arrived and waits; code of the interrupted phase, or NOT_WAITING."""
    receiver = _receiver
    if receiver.monitor is None or not _runs_step(receiver):
        return NOT_WAITING
    interrupted = receiver.monitor.wait_begins()
    if interrupted != NOT_WAITING and operations_tap.tap is not None:
        receiver.since_ns = time.monotonic_ns()
    return interrupted


def end(
    interrupted: int,
    kind: str | None,
    size_bytes: int,
    *,
    calls: int = 1,
    ranks: int | None = None,
    op: str | None = None,
    micro_batch: int | None = None,
    chunk: int | None = None,
) -> None:
    """Ends the wait that ``begin`` reported.

    Args:
        interrupted: result of ``begin``.
        kind: kind of collective; None for a barrier and the like, waited for but not counted.
        size_bytes: the larger of what goes in and what comes out, as nccl-tests counts.
        calls: collectives that were waited for at once.
        ranks: number of ranks in the group; None where unknown, and then no bus bandwidth is known.
        op: name of the operation; the kind where left out.
        micro_batch: see ``Operation``.
        chunk: see ``Operation``.
    """
    receiver = _receiver
    if interrupted == NOT_WAITING or receiver.monitor is None:
        return
    receiver.monitor.wait_ended(interrupted, kind, calls, size_bytes, ranks)
    if operations_tap.tap is not None and receiver.since_ns:
        name = op or kind or "barrier"
        end_ns = time.monotonic_ns()
        operations_tap.tap(Operation(name, receiver.since_ns, end_ns, micro_batch, chunk, kind))
        receiver.since_ns = 0
