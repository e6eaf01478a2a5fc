"""Makes the next batches in a thread while the loop trains on this one."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")


class _End:
    """What the thread gives when there are no more batches."""


_END: Final = _End()


def prefetched(batches: Iterable[T], depth: int) -> Iterable[T]:
    """The same batches in the same order, at most ``depth`` of them made ahead; 0 = none.

    What goes wrong in the thread is raised in the loop, at the batch where it went wrong. The
    thread ends with the loop, finished or not.
    """
    return _ahead(batches, depth) if depth else batches


def _ahead(batches: Iterable[T], depth: int) -> Iterator[T]:
    source = iter(batches)
    thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")

    def make() -> T | _End:
        return next(source, _END)

    try:
        made: deque[Future[T | _End]] = deque(thread.submit(make) for _ in range(depth))
        while not isinstance(batch := made.popleft().result(), _End):
            made.append(thread.submit(make))
            yield batch
    finally:
        thread.shutdown(cancel_futures=True)
