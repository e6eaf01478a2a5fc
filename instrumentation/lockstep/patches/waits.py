"""What every instrumentation point reports when its rank waits for others: begin and end.

Threads that are not the loop's (a checkpoint in the background, a loader) wait on their own
account and report nothing.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from lockstep.guard import Parts
from lockstep.recorder import operation_listeners as operations_tap
from lockstep.recorder.loop_calls import LoopCalls
from lockstep.recorder.operation_listeners import Operation
from lockstep.recorder.phases import NOT_WAITING

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class _Receiver:
    """The monitor that takes reports, and from which threads. A rank waits for one thing a time."""

    monitor: LoopCalls | None = None
    parts: Parts = field(default_factory=Parts)
    threads: set[int] = field(default_factory=set)
    since_ns: int = 0


_receiver = _Receiver()


def report_to(monitor: LoopCalls, parts: Parts | None = None) -> None:
    """From now on this monitor takes the waits of the calling thread, and of no other."""
    _receiver.monitor, _receiver.parts = monitor, parts or Parts()
    _receiver.threads = {threading.get_ident()}


def run(part: str, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Result of what is ours inside a call of torch's; None where it fails, or has failed."""
    return _receiver.parts.run(part, call, *args, **kwargs)


def include_this_thread() -> None:
    """The calling thread runs a part of the step: autograd has threads of its own for a GPU."""
    _receiver.threads.add(threading.get_ident())


def begin() -> int:
    """The rank has arrived and waits.

    Returns:
        Code of the interrupted phase, for ``end``; NOT_WAITING where the wait does not count.
    """
    receiver = _receiver
    if receiver.monitor is None or threading.get_ident() not in receiver.threads:
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
        ranks: number of ranks in the group; None where unknown, and then there is no bus bandwidth.
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
