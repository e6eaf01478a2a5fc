"""The server: uvicorn's, behind connections that are limited in number, time and size."""

import asyncio
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_CLIENT_CONNECTIONS = 256
HEAD_SECONDS = 10.0
"""For the handshake of TLS and the first line and headers of a request."""
BODY_SECONDS = 30.0
ANSWER_SECONDS = 60.0
KEEP_ALIVE_SECONDS = 75.0
_MAX_SENDING = 16


@dataclass(eq=False, slots=True)
class Connection:
    """One open connection, closed at once by ``close``, or at a deadline of the monotonic clock."""

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
        return self._count

    def add(self, client: str, opened: socket.socket) -> Connection | None:
        """Admits a connection that was opened; None where all others are being answered."""
        if len(self._open.get(client, ())) >= MAX_CLIENT_CONNECTIONS:
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


_MAX_HEAD_BYTES = 32 << 10
_MAX_HEADERS = 100
_MAX_TARGET_BYTES = 8 << 10
_MAX_CHUNKS = 4096
_MAX_PIPELINED = 16
# What is too long is refused at once; a client that sends its body before it reads the answer is
# heard out so far.
_MAX_MESSAGE_BYTES = 80 << 20
_SWEEP_SECONDS = 0.5
_REST_SECONDS = 0.1


class OversizedError(ValueError):
    """A request with too much of something, or of another form; the text says of what."""


class BoundedProtocol(HttpToolsProtocol):
    """HTTP of one connection, with a deadline for each part of a request and bounds on its size."""

    def __init__(self, connection: Connection, connections: Connections, **parts: Any) -> None:
        super().__init__(**parts)
        self._connection, self._all = connection, connections
        self._is_inside = self._is_body = False
        self._num_bytes = self._num_chunks = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """The handshake, where there is one, is done."""
        self._connection.close = transport.abort
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._all.remove(self._connection)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses, and closes a connection whose message grows without an end."""
        self._num_bytes += len(data)
        super().data_received(data)
        limit = _MAX_MESSAGE_BYTES if self._is_body else _MAX_HEAD_BYTES
        if self._is_inside and (self._num_bytes > limit or len(self.headers) > _MAX_HEADERS):
            self.transport.abort()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._is_inside, self._is_body = True, False
        self._num_bytes = self._num_chunks = 0
        if self._connection.deadline_seconds > self._all.clock() + HEAD_SECONDS:
            self._all.grant_seconds(self._connection, HEAD_SECONDS)

    def on_headers_complete(self) -> None:
        """First line and headers are there."""
        size = sum(len(name) + len(value) for name, value in self.headers)
        if not self.url.startswith(b"/"):
            raise OversizedError("the target must be a path")
        if len(self.url) > _MAX_TARGET_BYTES:
            raise OversizedError(f"the target is longer than {_MAX_TARGET_BYTES} bytes")
        if size > _MAX_HEAD_BYTES or len(self.headers) > _MAX_HEADERS:
            raise OversizedError("too many headers")
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise OversizedError("too many requests without reading the answers")
        self._is_body, self._num_bytes = True, 0
        self._all.grant_seconds(self._connection, BODY_SECONDS)
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """A part of a body without a length; many tiny ones would cost more than they carry."""
        self._num_chunks += 1
        if self._num_chunks > _MAX_CHUNKS:
            raise OversizedError("too many chunks")

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._is_inside = self._is_body = False
        if self.pipeline or not self.cycle.response_complete:
            self._all.set_busy(self._connection)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is written, if not sent."""
        super().on_response_complete()
        if self.pipeline or self.transport.is_closing():
            return
        if not self._is_inside:
            self._all.grant_seconds(self._connection, KEEP_ALIVE_SECONDS)
        self._all.set_idle(self._connection, self.transport.get_write_buffer_size())


class BoundedServer(uvicorn.Server):
    """Accepts by itself, so that connections are counted before their handshake."""

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, connections: Connections
    ) -> None:
        super().__init__(config)
        self._listener, self._connections = listener, connections
        self._lasting: list[asyncio.Task[None]] = []
        self._opening: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to accept from its listener; uvicorn itself gets no socket."""
        await super().startup(sockets or [])
        self._listener.setblocking(False)
        loop = asyncio.get_running_loop()
        self._lasting = [loop.create_task(self._accept()), loop.create_task(self._sweep())]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts no more and ends."""
        for task in self._lasting:
            task.cancel()
        await super().shutdown(sockets)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                opened, address = await loop.sock_accept(self._listener)
            except OSError:  # such as a table of files that is full
                await asyncio.sleep(_REST_SECONDS)
                continue
            connection = self._connections.add(str(address[0]), opened)
            if connection is None:
                opened.close()
                continue
            task = loop.create_task(self._open(opened, connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, opened: socket.socket, connection: Connection) -> None:
        is_open = False
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(connection),
                opened,
                ssl=self.config.ssl,
                ssl_handshake_timeout=HEAD_SECONDS if self.config.ssl else None,
            )
            is_open = True
        except OSError:
            return  # it hung up, or speaks no TLS
        finally:
            if not is_open:
                self._connections.remove(connection)
                opened.close()

    def _protocol(self, connection: Connection) -> BoundedProtocol:
        return BoundedProtocol(
            connection,
            self._connections,
            config=self.config,
            server_state=self.server_state,
            app_state={},
            _loop=asyncio.get_running_loop(),
        )

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._connections.close_overdue()
