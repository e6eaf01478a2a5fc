"""Limits the connections of a server in number and in time; the oldest one is closed first."""

import socket
import threading
import time
from collections.abc import Callable


class ConnectionLimiter:
    """Keeps every open connection with the time at which it was opened.

    A slow client holds a thread until its time-out or until the limit is reached: then the oldest
    connection is closed. So a new client always gets in, however many others do nothing.
    """

    def __init__(
        self, max_open: int, timeout_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_open, self._timeout_seconds, self._clock = max_open, timeout_seconds, clock
        self._opened_seconds: dict[socket.socket, float] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Number of open connections."""
        return len(self._opened_seconds)

    def add(self, connection: socket.socket) -> None:
        """Adds a connection that was opened; the oldest is closed when there are too many."""
        with self._lock:
            by_age = sorted(self._opened_seconds, key=lambda other: self._opened_seconds[other])
            for oldest in by_age[: max(len(by_age) + 1 - self._max_open, 0)]:
                self._close(oldest)
            self._opened_seconds[connection] = self._clock()

    def replace(self, plain: socket.socket, secured: socket.socket) -> bool:
        """Replaces a connection by the one of its TLS; False when it was closed meanwhile."""
        with self._lock:
            opened_seconds = self._opened_seconds.pop(plain, None)
            if opened_seconds is not None:
                self._opened_seconds[secured] = opened_seconds
            return opened_seconds is not None

    def remove(self, connection: socket.socket) -> None:
        """Removes a connection that is closed."""
        with self._lock:
            self._opened_seconds.pop(connection, None)

    def close_overdue(self) -> None:
        """Closes the connections that have reached their time-out."""
        with self._lock:
            latest_seconds = self._clock() - self._timeout_seconds
            for connection, opened_seconds in list(self._opened_seconds.items()):
                if opened_seconds <= latest_seconds:
                    self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        """Wakes the thread that reads or writes, which then closes the socket.

        Of a TLS connection the plain socket is shut down: ``SSLSocket.shutdown`` would take the
        session away from the thread that uses it.
        """
        self._opened_seconds.pop(connection, None)
        try:
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
        except OSError:
            return  # it is closed already
