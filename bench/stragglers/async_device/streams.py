"""Streams and events with the names and the meaning of those of ``torch.cuda``.

A stream is a queue and a thread. A kernel takes exactly its programmed time by the stream's own
clock, however busy the machine is: it begins when it was launched or when the one before it ended,
whichever is later, and its thread sleeps until its end.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Moment:
    """A point in a stream that others may wait for.

    Attributes:
        at_ns: monotonic nanoseconds at which the stream passed it; 0 before.
    """

    __slots__ = ("_lock", "at_ns")

    def __init__(self) -> None:
        self.at_ns = 0
        self._lock = threading.Lock()
        self._lock.acquire()

    def pass_at(self, at_ns: int) -> None:
        """The stream has come here."""
        self.at_ns = at_ns
        self._lock.release()

    def wait(self) -> int:
        """Blocks until the stream has come here; returns when that was."""
        with self._lock:
            return self.at_ns


class Stream:
    """Does what it is given in order, on a thread of its own.

    Args:
        priority: of no meaning here.

    Attributes:
        free_ns: monotonic nanoseconds at which what has been done so far ended.
    """

    def __init__(self, priority: int = 0) -> None:
        del priority
        self._work: deque[Callable[[], None]] = deque()
        self._ready = threading.Semaphore(0)
        self._submitted = self._done = 0
        self.free_ns = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._ready.acquire()
            self._work.popleft()()
            self._done += 1

    def submit(self, work: Callable[[], None]) -> None:
        """Has it done after all that was submitted before."""
        self._submitted += 1
        self._work.append(work)
        self._ready.release()

    def launch(self, seconds: float) -> None:
        """A kernel of that duration."""
        launched_ns, duration_ns = time.monotonic_ns(), int(seconds * 1e9)

        def run() -> None:
            self.free_ns = max(self.free_ns, launched_ns) + duration_ns
            sleep_until(self.free_ns)

        self.submit(run)

    def query(self) -> bool:
        """Whether everything is done."""
        return self._done == self._submitted

    def record_event(self, event: "Event | None" = None) -> "Event":
        """An event at the end of what was submitted so far."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Goes on only after the event; the host does not wait."""
        event.wait(self)

    def wait_stream(self, stream: "Stream") -> None:
        """Goes on only after all that the other stream was given so far."""
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """Has the host wait for all of it."""
        self.record_event().synchronize()


class Event:
    """As ``torch.cuda.Event``; all of them have timing."""

    def __init__(self, *, enable_timing: bool = False) -> None:
        del enable_timing
        self._moment: Moment | None = None

    def record(self, stream: Stream | None = None) -> "Event":
        """Puts it at the end of a stream."""
        stream, moment, recorded_ns = stream or current_stream(), Moment(), time.monotonic_ns()
        self._moment = moment

        def run() -> None:
            stream.free_ns = max(stream.free_ns, recorded_ns)
            moment.pass_at(stream.free_ns)

        stream.submit(run)
        return self

    def wait(self, stream: Stream | None = None) -> None:
        """Has a stream wait for it."""
        stream, moment = stream or current_stream(), self._moment
        if moment is None:
            return

        def run() -> None:
            stream.free_ns = max(stream.free_ns, moment.wait())

        stream.submit(run)

    def query(self) -> bool:
        """Whether its stream has passed it."""
        return self._moment is None or self._moment.at_ns != 0

    def synchronize(self) -> None:
        """Has the host wait for it."""
        if self._moment is not None:
            self._moment.wait()

    @property
    def at_ns(self) -> int:
        """Monotonic nanoseconds at which its stream passed it, which no real event tells."""
        return self._moment.at_ns if self._moment is not None else 0

    def elapsed_time(self, end_event: "Event") -> float:
        """Milliseconds to another event.

        Raises:
            RuntimeError: one of them was not recorded or not passed yet.
        """
        begin, end = self._moment, end_event._moment  # noqa: SLF001  # of its own class
        if begin is None or end is None or not begin.at_ns or not end.at_ns:
            raise RuntimeError("device not ready")
        return (end.at_ns - begin.at_ns) * 1e-6


def sleep_until(at_ns: int) -> None:
    """Sleeps until a monotonic moment."""
    left_ns = at_ns - time.monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns * 1e-9)


_default = Stream()
_selected = threading.local()


def current_stream(device: object = None) -> Stream:
    """The stream that takes the work of the calling thread."""
    del device
    stream: Stream = getattr(_selected, "stream", _default)
    return stream


@contextmanager
def select_stream(stream: Stream | None) -> Iterator[None]:
    """Another stream takes the work of the calling thread."""
    before = current_stream()
    _selected.stream = stream or before
    try:
        yield
    finally:
        _selected.stream = before
