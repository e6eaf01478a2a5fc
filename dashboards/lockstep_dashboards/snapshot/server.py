"""``lockstep dashboards serve``: the boards as pages that refresh, where no Grafana runs."""

import signal
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import click

from lockstep_cli.options import DurationRange, bad_input, read_address
from lockstep_dashboards.boards import SHIPPED
from lockstep_dashboards.snapshot.live import LiveBoards
from lockstep_dashboards.snapshot.page import content_policy
from lockstep_prometheus.client import Prometheus

_TEXT, _HTML = "text/plain", "text/html"


class BoardServer(ThreadingHTTPServer):
    """The pages of boards over HTTP, at a host and port; port 0 takes a free one.

    Raises:
        OSError: the address is taken, or is none of this machine.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], boards: LiveBoards) -> None:
        self.boards = boards
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: BoardServer
    timeout = 30  # seconds; a reader that stalls does not keep its thread

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        parts = [unquote(part) for part in address.path.split("/") if part]
        if not parts:
            self._answer(HTTPStatus.OK, self.server.boards.index(), _HTML)
        elif parts[0] == "d" and len(parts) > 1:
            # Grafana's addresses have a slug behind the uid, which says nothing.
            self._answer(*self.server.boards.board(parts[1], address.query), _HTML)
        elif parts == ["healthz"]:
            self._answer(HTTPStatus.OK, "ok\n", _TEXT)
        else:
            page = self.server.boards.message("No such page", "There are / and /d/BOARD.")
            self._answer(HTTPStatus.NOT_FOUND, page, _HTML)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # name of the base class
        """Logs no request: readers refresh all day."""

    def _answer(self, status: HTTPStatus, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", content_policy(is_served=True))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(body)


@click.command()
@click.option("--prometheus", "url", required=True, help="Address, such as http://127.0.0.1:9090.")
@click.option(
    "--listen",
    default="127.0.0.1:9441",
    show_default=True,
    metavar="HOST:PORT",
    help="Where the pages are; they have no password, so by default on loopback only.",
)
@click.option(
    "--refresh",
    "refresh_seconds",
    type=DurationRange(1, 3600),
    default="15s",
    show_default=True,
    help="Time between two refreshes; all readers of an address share one set of queries.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="Boards that are asked for at a time; each runs four queries at a time.",
)
@click.option(
    "--scrape-interval",
    "scrape_seconds",
    type=DurationRange(0.1),
    help="Scrape interval of the data source; asked of it by default.",
)
def serve(
    *,
    url: str,
    listen: str,
    refresh_seconds: float,
    concurrency: int,
    scrape_seconds: float | None,
) -> None:
    """Serve all boards as pages that refresh, with drop-downs for variables and time."""
    with bad_input():
        address = read_address(listen)
        source = Prometheus(url)
    boards = LiveBoards(
        SHIPPED,
        source,
        refresh_seconds=refresh_seconds,
        simultaneous=concurrency,
        scrape_seconds=scrape_seconds,
    )
    try:
        server = BoardServer(address, boards)
    except OSError as error:
        raise click.UsageError(f"--listen {listen}: {error.strerror}; name a free one") from error
    with source, server:
        _stop_on_signals(server)
        host, port = server.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        click.echo(f"boards at http://{name}:{port}/, drawn from {source.address}")
        server.serve_forever()


def _stop_on_signals(server: BoardServer) -> None:
    """SIGTERM and Ctrl-C end the process with status 0."""

    def stop(number: int, frame: object) -> None:
        del number, frame
        # shutdown() waits for the loop of this thread, so that another one has to call it.
        threading.Thread(target=server.shutdown).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
