"""What every attach point tells when its rank waits for others: when it begins and when it ends.

The attach points stay for the life of the process, for somebody may have wrapped them again; when
the monitor goes, they tell nobody. Threads that are not the loop's (a checkpoint in the background,
a loader) wait on their own account.
"""

import threading
import time
from dataclasses import dataclass, field

from lockstep.monitor.noop import NoopMonitor
from lockstep.recorder import operation_listeners as operations_tap
from lockstep.recorder.operation_listeners import Operation
from lockstep.recorder.phases import NOT_WAITING


@dataclass(slots=True)
class _Listener:
    """Who is told, and for which threads. A rank waits for one thing at a time."""

    monitor: NoopMonitor = field(default_factory=NoopMonitor)
    threads: set[int] = field(default_factory=set)
    since_ns: int = 0


_listener = _Listener()


def listen(monitor: NoopMonitor) -> None:
    """Tells this monitor from now on, of what the calling thread does."""
    _listener.monitor = monitor
    _listener.threads = {threading.get_ident()}


def this_thread_too() -> None:
    """The calling thread runs a part of the step: autograd has threads of its own for a GPU."""
    _listener.threads.add(threading.get_ident())


def begin() -> int:
    """The rank has arrived and waits; gives what ``end`` must be told."""
    listener = _listener
    if threading.get_ident() not in listener.threads:
        return NOT_WAITING
    interrupted = listener.monitor.wait_begins()
    if interrupted != NOT_WAITING and operations_tap.tap is not None:
        listener.since_ns = time.monotonic_ns()
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
    """The wait that ``begin`` told of is over.

    Args:
        interrupted: what ``begin`` gave.
        kind: kind of collective; None for a barrier and the like, waited for but not counted.
        size_bytes: the larger of what goes in and what comes out, as nccl-tests counts.
        calls: collectives that were waited for at once.
        ranks: in the group; None where unknown, and then no bus bandwidth is told.
        op: name of the operation; the kind where left out.
        micro_batch: see ``Operation``.
        chunk: see ``Operation``.
    """
    if interrupted == NOT_WAITING:
        return
    listener = _listener
    listener.monitor.wait_ended(interrupted, kind, calls, size_bytes, ranks)
    if operations_tap.tap is not None and listener.since_ns:
        name = op or kind or "barrier"
        now = time.monotonic_ns()
        operations_tap.tap(Operation(name, listener.since_ns, now, micro_batch, chunk, kind))
        listener.since_ns = 0
