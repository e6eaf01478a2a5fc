"""The running ledger: the store, its writer, the counts per window and the server."""

import gc
import logging
import resource
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, tzinfo
from itertools import product
from pathlib import Path

import click
import uvicorn

from lockstep_cli.options import bad_input
from lockstep_cli.signals import until_signal
from lockstep_ledger.merge.outcome import SettleTimeouts
from lockstep_ledger.store.database import StoreError, checkpoint_beside, open_store, writer_lock
from lockstep_ledger.store.retention import Retention
from lockstep_ledger.store.windows import WindowReader
from lockstep_ledger.store.writer import SharedWriter, StoreWriter
from lockstep_ledger.web.app import Application, Limits, Parts
from lockstep_ledger.web.intake import WRITER_SCOPES, GroupCommit, read_tokens
from lockstep_ledger.web.middleware import LOG_NAME
from lockstep_ledger.web.server import KEEP_ALIVE_SECONDS, BoundedServer, Connections
from lockstep_outcomes.prices.price import Pricing
from lockstep_outcomes.prices.rate_card import read_rate_card

_HOLD_FACTOR = 1.5
_STOP_SECONDS = 10
_MAX_CONNECTIONS = 2000
# For the store, the log and what else is open beside the connections.
_OTHER_FILES = 100
_BACKLOG = 1024
# The writer computes in a thread of the same interpreter: with the default of 5 ms, requests wait
# that long for it again and again.
_SWITCH_SECONDS = 0.001
# Records of jobs hold no reference cycles: a search for cycles among thousands of them delays every
# request by a tenth of a second, many times a minute.
_COLLECTIONS = (10_000, 20, 100)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Options of ``lockstep ledger serve``, checked."""

    listen: tuple[str, int]
    store: str
    clusters: tuple[str, ...] = ("local",)
    queues: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    job_classes: tuple[str, ...] = ()
    writer_tokens: Path | None = None
    reader_tokens: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    scrape_interval_seconds: float = 15.0
    node_wait_seconds: float = 600.0
    requeue_wait_seconds: float = 86_400.0
    silent_wait_seconds: float = 21_600.0
    keep_events_seconds: float | None = None
    keep_names_seconds: float | None = None
    max_body_bytes: int = 1 << 20
    requests_per_second: float = 100.0
    rates: Path | None = None
    zone: tzinfo = UTC

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """Groups of jobs whose counters are there before any job is."""
        names = (("", *values) for values in (self.queues, self.projects, self.job_classes))
        return list(product(self.clusters, *names))

    @property
    def timeouts(self) -> SettleTimeouts:
        """How long jobs wait for what is missing."""
        return SettleTimeouts(
            node_seconds=self.node_wait_seconds,
            requeue_seconds=self.requeue_wait_seconds,
            silent_seconds=self.silent_wait_seconds,
        )


def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT; click.UsageError where an option cannot be used.

    SystemExit where the writer ended by an error: its supervisor starts the ledger again.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"{LOG_NAME}: level=%(levelname)s %(message)s"
    )
    with until_signal(), bad_input(StoreError):
        _check_tls(settings)
        writers = read_tokens(settings.writer_tokens, WRITER_SCOPES)
        readers = read_tokens(settings.reader_tokens, ("reader",))
        listener = _listen(*settings.listen)
        with listener, _ledger(settings) as parts:
            _serve(settings, listener, Application(parts, writers, readers, _limits(settings)))
            if not parts.group_commit.is_alive:
                raise SystemExit(1)


@contextmanager
def _ledger(settings: Settings) -> Iterator[Parts]:
    pricing = Pricing(read_rate_card(settings.rates), settings.zone)
    engine = open_store(settings.store)
    try:
        clusters = frozenset(settings.clusters)
        writer = SharedWriter(
            engine,
            lambda own: StoreWriter(
                own, settings.timeouts, settings.groups, clusters=clusters, pricing=pricing
            ),
            Retention(settings.keep_events_seconds, settings.keep_names_seconds),
        )
        is_shareable = engine.dialect.name == "postgresql"
        lock = nullcontext() if is_shareable else writer_lock(engine)
        with lock, checkpoint_beside(engine):
            group_commit = GroupCommit(writer, _end_server)
            windows = WindowReader(engine, clusters=clusters)
            writer.start()
            group_commit.start()
            windows.start()
            try:
                yield Parts(engine, writer, group_commit, windows, clusters, pricing)
            finally:
                windows.stop()
                if group_commit.is_alive:
                    group_commit.stop()
                writer.stop()
    finally:
        engine.dispose()


_servers: list[uvicorn.Server] = []


def _end_server() -> None:
    for server in _servers:
        server.should_exit = True


def _serve(settings: Settings, listener: socket.socket, application: Application) -> None:
    config = uvicorn.Config(
        application.asgi,
        access_log=False,
        log_config=None,
        log_level="error",  # clients that speak no HTTP could fill the log with warnings
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        timeout_keep_alive=round(KEEP_ALIVE_SECONDS),
        timeout_graceful_shutdown=_STOP_SECONDS,
        ws="none",
    )
    server = BoundedServer(config, listener, Connections(_raise_file_limit()))
    _servers.append(server)
    sys.setswitchinterval(_SWITCH_SECONDS)
    # Modules and loaded counters live as long as the process: a full collection need not visit
    # them, while every request waits for it.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.tls_cert else "http"
    name = f"[{host}]" if ":" in host else host
    click.echo(f"serving {scheme}://{name}:{port}/", err=True)
    server.run(sockets=[])
    application.asgi.flush()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise click.UsageError(
            f"cannot bind --listen {host}:{port} ({error.strerror}); choose another address, "
            "or port 0 for any free one"
        ) from error
    return listener


def _raise_file_limit() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _MAX_CONNECTIONS + _OTHER_FILES
    if soft < needed:
        soft = min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(min(_MAX_CONNECTIONS, soft - _OTHER_FILES), 1)


def _limits(settings: Settings) -> Limits:
    return Limits(
        max_body_bytes=settings.max_body_bytes,
        requests_per_second=settings.requests_per_second,
        hold_seconds=settings.scrape_interval_seconds * _HOLD_FACTOR,
        hosts=(*settings.allowed_hosts, settings.listen[0]),
    )


def _check_tls(settings: Settings) -> None:
    if settings.tls_cert is None or settings.tls_key is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        raise click.UsageError(
            f"--tls-cert {settings.tls_cert} and --tls-key {settings.tls_key} are not a "
            f"certificate and its key in PEM without a password ({error.strerror or error})"
        ) from error
