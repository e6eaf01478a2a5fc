"""The server: uvicorn's, behind connections that are limited in number, time and size."""

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lockstep_ledger.web.connections import (
    BODY_SECONDS,
    HEAD_SECONDS,
    KEEP_ALIVE_SECONDS,
    Connection,
    Connections,
)

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
    """A request with too much of something; the text says of what."""


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
        """Shakes hands where there is TLS, and gives the connection its protocol."""
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
