"""Limits the connections of the server in number and in time; the oldest idle one goes first."""

import socket
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_OF_A_CLIENT = 256
HEAD_SECONDS = 10.0
"""For the handshake of TLS and the first line and headers of a request."""
BODY_SECONDS = 30.0
ANSWER_SECONDS = 60.0
KEEP_ALIVE_SECONDS = 75.0
_MAX_SENDING = 16


@dataclass(eq=False, slots=True)
class Connection:
    """One open connection.

    Attributes:
        close: ends it at once, whatever it does.
        deadline_seconds: monotonic clock at which it is closed.
    """

    client: str
    close: Callable[[], None]
    deadline_seconds: float


@dataclass(slots=True)
class Connections:
    """All open connections, those that wait for their client apart.

    A connection is idle while the ledger waits for bytes of the client: of a handshake, of a
    request, of a body. Those of one address, and all together, are bounded; at the bound the one
    that has been idle for longest is closed. So a new client always gets in, probes and scrapes
    too, however many others do nothing.
    """

    max_open: int
    clock: Callable[[], float] = time.monotonic
    _open: dict[str, set[Connection]] = field(default_factory=lambda: defaultdict(set))
    _idle: dict[Connection, None] = field(default_factory=dict)
    _sending: dict[Connection, None] = field(default_factory=dict)
    _count: int = 0

    def __len__(self) -> int:
        """Number of open connections."""
        return self._count

    def add(self, client: str, opened: socket.socket) -> Connection | None:
        """Admits a connection that was opened; None where all others are being answered."""
        if len(self._open.get(client, ())) >= MAX_OF_A_CLIENT:
            oldest = next((idle for idle in self._idle if idle.client == client), None)
        elif self._count >= self.max_open:
            oldest = next(iter(self._idle), None)
        else:
            return self._admit(client, opened)
        return self._admit(client, opened) if self._close(oldest) else None

    def _admit(self, client: str, opened: socket.socket) -> Connection:
        connection = Connection(client, lambda: _shut_down(opened), self.clock() + HEAD_SECONDS)
        self._open[client].add(connection)
        self._idle[connection] = None
        self._count += 1
        return connection

    def _close(self, connection: Connection | None) -> bool:
        if connection is None:
            return False
        self.remove(connection)
        connection.close()
        return True

    def remove(self, connection: Connection) -> None:
        """Removes a connection that is closed."""
        own = self._open.get(connection.client, set())
        if connection not in own:
            return
        own.remove(connection)
        self._count -= 1
        if not own:
            del self._open[connection.client]
        self._idle.pop(connection, None)
        self._sending.pop(connection, None)

    def grant_seconds(self, connection: Connection, seconds: float) -> None:
        """Gives the client this long from now for what comes next."""
        connection.deadline_seconds = self.clock() + seconds

    def set_busy(self, connection: Connection) -> None:
        """A request is complete: the client waits for the ledger."""
        self._idle.pop(connection, None)
        self.grant_seconds(connection, ANSWER_SECONDS)

    def set_idle(self, connection: Connection, unsent_bytes: int) -> None:
        """An answer is complete: the ledger waits for the client, which may still have to read it.

        Long answers that nobody reads would fill the memory, so only a few may wait.
        """
        if connection not in self._open.get(connection.client, ()):
            return
        self._idle[connection] = None
        self._sending.pop(connection, None)
        if unsent_bytes:
            self._sending[connection] = None
            if len(self._sending) > _MAX_SENDING:
                self._close(next(iter(self._sending)))

    def close_overdue(self) -> None:
        """Closes the connections that have reached their deadline."""
        now = self.clock()
        for connection in [c for own in self._open.values() for c in own]:
            if connection.deadline_seconds <= now:
                self._close(connection)


def _shut_down(opened: socket.socket) -> None:
    try:
        opened.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is closed already
