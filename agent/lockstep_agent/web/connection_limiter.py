"""The connections of a server: bounded in number and in time, the oldest gives way."""

import socket
import threading
import time
from collections.abc import Callable


class ConnectionLimiter:
    """Knows every open connection and since when.

    A slow client holds a thread until its time is up or until the room is needed: then the oldest
    connection is cut. So whoever comes next always gets in, however many do nothing.

    Args:
        most: how many connections may be open at once.
        patience_seconds: how long one may take in all.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, most: int, patience_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._patience_seconds, self._clock = most, patience_seconds, clock
        self._since: dict[socket.socket, float] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many are open."""
        return len(self._since)

    def enter(self, one: socket.socket) -> None:
        """A connection that was opened; the oldest is cut when there are too many."""
        with self._lock:
            oldest = sorted(self._since, key=lambda other: self._since[other])
            for other in oldest[: max(len(oldest) + 1 - self._most, 0)]:
                self._cut(other)
            self._since[one] = self._clock()

    def replace(self, one: socket.socket, by: socket.socket) -> bool:
        """The same connection after its handshake; False when it was cut meanwhile."""
        with self._lock:
            since = self._since.pop(one, None)
            if since is not None:
                self._since[by] = since
            return since is not None

    def leave(self, one: socket.socket) -> None:
        """A connection that is closed."""
        with self._lock:
            self._since.pop(one, None)

    def cut_overdue(self) -> None:
        """Cuts those whose time is up."""
        with self._lock:
            deadline = self._clock() - self._patience_seconds
            for one in [one for one, since in self._since.items() if since <= deadline]:
                self._cut(one)

    def _cut(self, one: socket.socket) -> None:
        """Wakes the thread that reads or writes; of TLS the socket below, whoever holds it."""
        self._since.pop(one, None)
        try:
            socket.socket.shutdown(one, socket.SHUT_RDWR)
        except OSError:
            return  # it is closed already
