"""``lockstep dashboards serve``: the boards as pages that refresh, where no Grafana runs."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from urllib.parse import parse_qs, unquote, urlencode

import click

from lockstep_cli import small_server
from lockstep_cli.options import DurationRange, bad_input, option, read_address
from lockstep_cli.signals import until_signal
from lockstep_cli.small_server import HTML, Answer, SmallServer
from lockstep_dashboards.layout import SHIPPED
from lockstep_dashboards.panel import Board
from lockstep_dashboards.scope import Scope, open_board, parse_range
from lockstep_dashboards.snapshot import page as pages
from lockstep_dashboards.snapshot.answers import BoardAnswer, ask
from lockstep_dashboards.snapshot.command import POINTS
from lockstep_dashboards.snapshot.page import content_policy
from lockstep_prometheus.client import Prometheus, PrometheusError
from lockstep_records.text.durations import format_time

RANGES = (
    ("now-5m", "last 5 minutes"),
    ("now-15m", "last 15 minutes"),
    ("now-1h", "last hour"),
    ("now-6h", "last 6 hours"),
    ("now-1d", "last day"),
    ("now-7d", "last 7 days"),
    ("now-28d", "last 28 days"),
)
_MAX_CACHED = 32
_MAX_PARAMETERS = 64
_VARIABLE, _ALL = "var-", "$__all"


@dataclass(frozen=True, slots=True)
class Request:
    """What an address asks for: Grafana's parameters, and ``open`` for the collapsed rows."""

    begin: str
    end: str
    wishes: tuple[tuple[str, tuple[str, ...]], ...]
    is_open: bool
    is_part: bool

    @classmethod
    def of(cls, query: str, board: Board) -> "Request":
        """A request from what is behind the question mark; ValueError for too many parameters."""
        parameters = parse_qs(query, max_num_fields=_MAX_PARAMETERS)
        wishes = tuple(
            (name.removeprefix(_VARIABLE), tuple(values))
            for name, values in sorted(parameters.items())
            if name.startswith(_VARIABLE) and _ALL not in values
        )
        return cls(
            begin=parameters.get("from", [f"now-{board.range}"])[0],
            end=parameters.get("to", ["now"])[0],
            wishes=wishes,
            is_open="open" in parameters,
            is_part="part" in parameters,
        )

    @property
    def is_live(self) -> bool:
        """Whether the window moves with time."""
        return self.end == "now"

    def query(self, **more: str) -> str:
        """The parameters of an address that asks for the same, and more."""
        chosen = [(f"{_VARIABLE}{name}", value) for name, values in self.wishes for value in values]
        return urlencode([("from", self.begin), ("to", self.end), *chosen, *more.items()])


@dataclass(slots=True)
class _Entry:
    """An answer, or why there is none, until it is out of date; the lock lets one thread ask."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: BoardAnswer | None = None
    problem: str = ""
    expires_seconds: float = 0.0


class LiveBoards:
    """Boards over one Prometheus.

    Args:
        refresh_seconds: how long an answer serves all readers of the same address.
        simultaneous: addresses that are asked for at a time; others wait.
        scrape_seconds: None asks Prometheus.
    """

    def __init__(
        self,
        boards: Mapping[str, Board],
        source: Prometheus,
        *,
        refresh_seconds: float,
        simultaneous: int,
        scrape_seconds: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.boards, self._source = boards, source
        self._refresh_seconds, self._scrape_seconds = refresh_seconds, scrape_seconds
        self._clock = clock
        self._slots = threading.BoundedSemaphore(simultaneous)
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, Request], _Entry] = OrderedDict()

    def index(self) -> str:
        """The page of all boards."""
        boards = list(self.boards.values())
        return pages.render("index", address=self._source.address, boards=boards)

    def board(self, name: str, query: str) -> tuple[HTTPStatus, str]:
        """Status and page of a board, by its uid or its short name."""
        for short, board in self.boards.items():
            if name in {board.uid, short}:
                return self._page(board, query)
        names = ", ".join(board.uid for board in self.boards.values())
        text = f"Board {name!r} does not exist; the boards are {names}."
        return HTTPStatus.NOT_FOUND, self.message("No such board", text)

    def message(self, title: str, text: str, *, refreshes: bool = False) -> str:
        """A page with one sentence."""
        refresh_seconds = self._refresh_seconds if refreshes else None
        return pages.render("message", title=title, text=text, refresh_seconds=refresh_seconds)

    def _page(self, board: Board, query: str) -> tuple[HTTPStatus, str]:
        try:
            request = Request.of(query, board)
            answer = self._answer(board, request)
        except PrometheusError as error:
            page = self.message(board.title, f"{error}.", refreshes=True)
            return HTTPStatus.BAD_GATEWAY, page
        except ValueError as error:
            return HTTPStatus.BAD_REQUEST, self.message(board.title, f"{error}.")
        options = pages.PageOptions(
            address=self._source.address,
            bases={"boards": ""},
            controls=_controls(
                request, answer.scope, self._refresh_seconds if request.is_live else 0.0
            ),
        )
        return HTTPStatus.OK, (pages.board_part if request.is_part else pages.board_page)(
            answer, options
        )

    def _answer(self, board: Board, request: Request) -> BoardAnswer:
        key = (board.uid, replace(request, is_part=False))
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > _MAX_CACHED:
                self._entries.popitem(last=False)
        with entry.lock:
            if self._clock() >= entry.expires_seconds:
                self._fill(entry, board, request)
            if entry.answer is None:
                raise PrometheusError(entry.problem)
            return entry.answer

    def _fill(self, entry: _Entry, board: Board, request: Request) -> None:
        """Asks Prometheus; that it is away holds for a refresh too, or each reader would wait."""
        with self._slots:
            try:
                entry.answer, entry.problem = self._ask(board, request), ""
            except PrometheusError as error:
                entry.answer, entry.problem = None, str(error)
        entry.expires_seconds = self._clock() + self._refresh_seconds

    def _ask(self, board: Board, request: Request) -> BoardAnswer:
        now = self._clock()
        if self._scrape_seconds is None:
            self._scrape_seconds = self._source.scrape_seconds()
        range_seconds, end = parse_range(request.begin, request.end, now)
        scope = Scope(
            end=end,
            range_seconds=range_seconds,
            scrape_seconds=self._scrape_seconds,
            chosen=dict(request.wishes),
            max_points=POINTS,
        )
        scope = open_board(board, scope, self._source, strict=False)
        panels = board.panels if request.is_open else board.opened_panels
        return ask(board, panels, scope, self._source)


def _controls(request: Request, scope: Scope, refresh_seconds: float) -> pages.Controls:
    ranges: tuple[tuple[str, str], ...] = RANGES
    if request.begin not in {begin for begin, _ in RANGES} or not request.is_live:
        text = f"{format_time(scope.start)} to {format_time(scope.end)}"
        ranges = ((request.begin, text), *(pair for pair in RANGES if pair[0] != request.begin))
    return pages.Controls(
        begin=request.begin,
        ranges=ranges,
        end=request.end,
        open_query=request.query(open="all"),
        refresh_seconds=refresh_seconds,
    )


class BoardServer(SmallServer):
    """The pages of boards over HTTP, at a host and port; port 0 takes a free one. Or OSError."""

    def __init__(self, address: tuple[str, int], boards: LiveBoards) -> None:
        self.boards = boards
        super().__init__(*address)

    def respond(self, request: small_server.Request) -> Answer:
        """A board's page, the list of boards, or why there is none."""
        parts = [unquote(part) for part in request.path.split("/") if part]
        if parts == ["healthz"]:
            return Answer(HTTPStatus.OK, b"ok\n")
        if not parts:
            status, page = HTTPStatus.OK, self.boards.index()
        elif parts[0] == "d" and len(parts) > 1:
            # Grafana's addresses have a slug behind the uid, which says nothing.
            status, page = self.boards.board(parts[1], request.query)
        else:
            status = HTTPStatus.NOT_FOUND
            page = self.boards.message("No such page", "There are / and /d/BOARD.")
        return Answer(status, page.encode(), HTML, _HEADERS)


_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": content_policy(is_served=True),
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
}


@click.command()
@click.option("--prometheus", "url", required=True, help="Address, such as http://127.0.0.1:9090.")
@option(
    "--listen",
    default="127.0.0.1:9441",
    metavar="HOST:PORT",
    help="Where the pages are; they have no password, so by default on loopback only.",
)
@option(
    "--refresh",
    "refresh_seconds",
    type=DurationRange(1, 3600),
    default="15s",
    help="Time between two refreshes; all readers of an address share one set of queries.",
)
@option(
    "--concurrency",
    type=click.IntRange(1, 64),
    default=2,
    help="Boards that are asked for at a time; each runs four queries at a time.",
)
@click.option(
    "--scrape-interval",
    "scrape_seconds",
    type=DurationRange(0.1),
    help="Scrape interval of the data source; asked of it by default.",
)
def serve(
    *, url: str, listen: str, refresh_seconds: float, concurrency: int, scrape_seconds: float | None
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
    with until_signal(), source, server:
        click.echo(f"boards at http://{server.address}/, drawn from {source.address}")
        server.serve_forever()
