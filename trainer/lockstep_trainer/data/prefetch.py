"""Prepares the next batches in a thread while the loop trains on this one."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")


class _End:
    """Marks the end of the batches."""


_END: Final = _End()


def prefetch(batches: Iterable[T], depth: int) -> Iterable[T]:
    """The same batches in the same order, at most ``depth`` of them prepared ahead; 0 = none.

    An error in the thread is raised in the loop at the batch where it occurred. The thread ends
    with the loop, finished or not.
    """
    return _prefetch_in_thread(batches, depth) if depth else batches


def _prefetch_in_thread(batches: Iterable[T], depth: int) -> Iterator[T]:
    source = iter(batches)
    # One worker: with two, batches could be drawn from the iterator out of order.
    thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")

    def next_batch() -> T | _End:
        return next(source, _END)

    try:
        pending: deque[Future[T | _End]] = deque(thread.submit(next_batch) for _ in range(depth))
        while not isinstance(batch := pending.popleft().result(), _End):
            pending.append(thread.submit(next_batch))
            yield batch
    finally:
        # Also after a break in the loop: the generator is closed then, which runs this.
        thread.shutdown(cancel_futures=True)
