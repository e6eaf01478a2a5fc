"""Collectives as NCCL has them: launched into a stream, waited for by streams and not by the host.

The ranks meet over gloo in the communicator's own thread, and tell each other when their streams
came. A collective ends for all of them when the last has come, plus its programmed duration.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from async_device.streams import Event, Stream, current_stream, sleep_until

# Torch's own, before ``strategies`` replaces it.
_all_reduce, _recv = dist.all_reduce, dist.recv


class Work:
    """What a collective leaves that is not waited for at once."""

    def __init__(self, done: Event) -> None:
        self._done = done

    def wait(self, timeout: object = None) -> bool:
        """Has the current stream wait for it."""
        del timeout
        current_stream().wait_event(self._done)
        return True

    def is_completed(self) -> bool:
        """Whether it is over."""
        return self._done.query()


class Communicator:
    """Collectives of all ranks, one after another.

    Args:
        seconds: of each collective from the last arrival on.
    """

    def __init__(self, seconds: float) -> None:
        self._group = dist.new_group(backend="gloo")
        self._stream, self.seconds = Stream(), seconds

    def collective(self, *, async_op: bool = False, more_seconds: float = 0.0) -> Work:
        """Starts a collective; the current stream waits for it, unless it is asynchronous.

        Args:
            async_op: whether only ``Work.wait`` has a stream wait.
            more_seconds: duration besides the programmed one; the longest of any rank counts.
        """
        self._stream.wait_stream(current_stream())
        self._stream.submit(lambda: self._meet(self.seconds + more_seconds))
        work = Work(self._stream.record_event())
        if not async_op:
            work.wait()
        return work

    def _meet(self, seconds: float) -> None:
        stream = self._stream
        moments = torch.tensor([stream.free_ns, int(seconds * 1e9)])
        _all_reduce(moments, dist.ReduceOp.MAX, self._group)
        arrival_ns, duration_ns = moments.tolist()
        stream.free_ns = arrival_ns + duration_ns
        sleep_until(stream.free_ns)


class Transfers:
    """Sends and receives between pipeline stages.

    Args:
        seconds: of each transfer.
    """

    def __init__(self, seconds: float) -> None:
        self._group = dist.new_group(backend="gloo")
        self._stream, self._seconds = Stream(), seconds

    def batch(self, operations: Sequence[Any]) -> list[Work]:
        """Starts operations of ``torch.distributed.P2POp``; one work for each."""
        directions = [(operation.op is dist.isend, operation.peer) for operation in operations]
        self._stream.wait_stream(current_stream())
        self._stream.submit(lambda: self._exchange(directions))
        done = self._stream.record_event()
        return [Work(done) for _ in operations]

    def _exchange(self, directions: Sequence[tuple[bool, int]]) -> None:
        stream, own = self._stream, torch.tensor([self._stream.free_ns])
        sends = [dist.isend(own, peer, self._group) for is_send, peer in directions if is_send]
        for is_send, peer in directions:
            if not is_send:
                theirs = torch.zeros(1, dtype=torch.int64)
                _recv(theirs, peer, self._group)
                stream.free_ns = max(stream.free_ns, int(theirs.item()))
        for send in sends:
            if send is not None:
                send.wait()
        stream.free_ns += int(self._seconds * 1e9)
        sleep_until(stream.free_ns)
