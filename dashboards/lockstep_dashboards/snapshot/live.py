"""The pages of boards that are served: asked for once a refresh, whatever the number of readers."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs, urlencode

from lockstep_dashboards.snapshot.answers import BoardAnswer, ask
from lockstep_dashboards.snapshot.page import (
    Controls,
    PageOptions,
    board_page,
    board_part,
    environment,
    page_style,
)
from lockstep_dashboards.snapshot.shipped import KnownBoard
from lockstep_dashboards.snapshot.variables import choose
from lockstep_dashboards.snapshot.window import Window, parse_time
from lockstep_records.shared.durations import format_time
from lockstep_records.shared.prometheus import Prometheus, PrometheusError

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
_VARIABLE = "var-"


@dataclass(frozen=True, slots=True)
class Request:
    """What an address asks for: Grafana's parameters, and ``open`` for the collapsed rows."""

    begin: str
    end: str
    wishes: tuple[tuple[str, tuple[str, ...]], ...]
    is_open: bool
    is_part: bool

    @classmethod
    def of(cls, query: str, board: KnownBoard) -> "Request":
        """A request from the part of an address behind the question mark.

        Raises:
            ValueError: it has too many parameters.
        """
        parameters = parse_qs(query, max_num_fields=_MAX_PARAMETERS)
        wishes = tuple(
            (name.removeprefix(_VARIABLE), tuple(values))
            for name, values in sorted(parameters.items())
            if name.startswith(_VARIABLE)
        )
        return cls(
            begin=parameters.get("from", [board.board.range_begin])[0],
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
        boards: those that are served.
        source: the Prometheus.
        refresh_seconds: how long an answer serves all readers of the same address.
        simultaneous: addresses that are asked for at a time; others wait.
        scrape_seconds: scrape interval; None asks Prometheus.
        clock: wall clock, in seconds since the epoch.
    """

    def __init__(
        self,
        boards: list[KnownBoard],
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
        return (
            environment()
            .get_template("index.html.j2")
            .render(
                style=page_style(),
                address=self._source.address,
                boards=[
                    {"board": item.board, "purpose": _purpose(item.board.description)}
                    for item in self.boards
                ],
            )
        )

    def board(self, name: str, query: str) -> tuple[HTTPStatus, str]:
        """Status and page of a board, by its uid or its short name."""
        for item in self.boards:
            if name in {item.board.uid, item.name}:
                return self._page(item, query)
        names = ", ".join(item.board.uid for item in self.boards)
        text = f"Board {name!r} does not exist; the boards are {names}."
        return HTTPStatus.NOT_FOUND, self.message("No such board", text)

    def message(self, title: str, text: str, *, refreshes: bool = False) -> str:
        """A page with one sentence."""
        return (
            environment()
            .get_template("message.html.j2")
            .render(
                style=page_style(),
                title=title,
                text=text,
                refresh_seconds=self._refresh_seconds if refreshes else None,
            )
        )

    def _page(self, item: KnownBoard, query: str) -> tuple[HTTPStatus, str]:
        try:
            request = Request.of(query, item)
            answer = self._answer(item, request)
        except PrometheusError as error:
            page = self.message(item.board.title, f"{error}.", refreshes=True)
            return HTTPStatus.BAD_GATEWAY, page
        except ValueError as error:
            return HTTPStatus.BAD_REQUEST, self.message(item.board.title, f"{error}.")
        options = PageOptions(
            address=self._source.address,
            may_be_empty=item.may_be_empty,
            refresh_seconds=self._refresh_seconds if request.is_live else 0.0,
            controls=_controls(request, answer.window),
        )
        return HTTPStatus.OK, (board_part if request.is_part else board_page)(answer, options)

    def _answer(self, item: KnownBoard, request: Request) -> BoardAnswer:
        """The answer to an address, which all who ask for it within a refresh share."""
        key = (
            item.board.uid,
            Request(request.begin, request.end, request.wishes, request.is_open, is_part=False),
        )
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > _MAX_CACHED:
                self._entries.popitem(last=False)
        with entry.lock:
            if self._clock() >= entry.expires_seconds:
                self._fill(entry, item, request)
            if entry.answer is None:
                raise PrometheusError(entry.problem)
            return entry.answer

    def _fill(self, entry: _Entry, item: KnownBoard, request: Request) -> None:
        """Asks Prometheus; that it is away holds for a refresh too, or each reader would wait."""
        with self._slots:
            try:
                entry.answer, entry.problem = self._ask(item, request), ""
            except PrometheusError as error:
                entry.answer, entry.problem = None, str(error)
        entry.expires_seconds = self._clock() + self._refresh_seconds

    def _ask(self, item: KnownBoard, request: Request) -> BoardAnswer:
        now = self._clock()
        if self._scrape_seconds is None:
            self._scrape_seconds = self._source.scrape_seconds()
        begin, end = parse_time(request.begin, now), min(parse_time(request.end, now), now)
        window = Window.of(begin, end, self._scrape_seconds)
        wishes: Mapping[str, tuple[str, ...]] = dict(request.wishes)
        choices = choose(item.board, self._source, window, wishes, strict=False)
        panels = [
            panel
            for section in item.board.sections
            if request.is_open or not section.is_collapsed
            for panel in section.panels
        ]
        return ask(item.board, panels, choices, source=self._source, window=window)


def _controls(request: Request, window: Window) -> Controls:
    ranges: tuple[tuple[str, str], ...] = RANGES
    if request.begin not in {begin for begin, _ in RANGES} or not request.is_live:
        text = f"{format_time(window.begin)} to {format_time(window.end)}"
        ranges = ((request.begin, text), *(pair for pair in RANGES if pair[0] != request.begin))
    return Controls(
        begin=request.begin, ranges=ranges, end=request.end, open_query=request.query(open="all")
    )


def _purpose(description: str) -> str:
    """A board's description without the note on how it is generated."""
    return description.partition("not this file.")[2].strip() or description
