"""A pager for one machine: receives webhooks, prints and shows the pages, serves the runbooks."""

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

import click
import msgspec

from lockstep_alerts.shipped import runbooks_path
from lockstep_cli.small_server import HTML, JSON, Answer, Request, SmallServer

RECEIVERS = ("pager", "tickets")
_NEVER = "0001-01-01T00:00:00Z"  # Go's zero time, by which Alertmanager says "has not ended"
_ANNOTATIONS = ("description", "runbook_url", "dashboard_url")


class WebhookError(ValueError):
    """The body is not what Alertmanager sends; the text names the field."""


class PagedAlert(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One alert of a page; ``ends_at`` is None while it fires."""

    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at: str
    ends_at: str | None


class _Body(msgspec.Struct, rename="camel"):
    status: str
    group_labels: dict[str, str]
    alerts: tuple[PagedAlert, ...]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One notification; ``time`` is when it arrived, RFC 3339."""

    time: str
    receiver: str
    status: str
    group_labels: Mapping[str, str]
    alerts: tuple[PagedAlert, ...]


def read_webhook(body: bytes, receiver: str, now: datetime) -> Page:
    """The page in a webhook's body; WebhookError where Alertmanager sends no such one."""
    try:
        sent = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WebhookError(f"body is not what Alertmanager sends: {error}") from error
    return Page(
        time=now.isoformat(timespec="milliseconds"),
        receiver=receiver,
        status=sent.status,
        group_labels=sent.group_labels,
        alerts=tuple(
            msgspec.structs.replace(alert, ends_at=None) if alert.ends_at == _NEVER else alert
            for alert in sent.alerts
        ),
    )


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def describe_alerts(page: Page) -> str:
    """The page as lines of text."""
    word = "PAGE" if page.receiver == "pager" else "TICKET"
    group = " ".join(f"{name}={value}" for name, value in page.group_labels.items())
    lines = [f"{page.time} {word} {page.status} {group}"]
    for alert in page.alerts:
        name = alert.labels.get("alertname", "alert without a name")
        lines.append(f"  {alert.status} {name}: {alert.annotations.get('summary', 'no summary')}")
        notes = (alert.annotations.get(field) for field in _ANNOTATIONS)
        lines += [f"    {note}" for note in notes if note]
    return "\n".join(map(_printable, lines))


PAGES_FILE = "pages.jsonl"
_PAGE = Path(__file__).with_suffix(".html")
_MAX_BODY_BYTES = 1 << 20
_MAX_SHOWN_PAGES = 1000


def _now() -> datetime:
    return datetime.now(UTC)


class PageBook:
    """The file of all pages, one JSON object a line."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PAGES_FILE
        self._lock = threading.Lock()

    def add(self, page: Page) -> None:
        """Appends a page; or OSError."""
        line = json.dumps(msgspec.to_builtins(page)) + "\n"
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(line)

    def newest(self) -> list[object]:
        """The newest pages, at most a thousand, oldest first; a torn line hides itself alone."""
        if not self._path.exists():
            return []
        with self._lock, self._path.open(encoding="utf-8", errors="replace") as file:
            lines = list(deque(file, _MAX_SHOWN_PAGES))
        pages = list[object]()
        for line in lines:
            with suppress(ValueError):
                pages.append(json.loads(line))
        return pages


class PagerServer(SmallServer):
    """The pager on loopback, with a folder of runbooks; port 0 takes a free one."""

    def __init__(
        self, port: int, book: PageBook, runbooks: Path, clock: Callable[[], datetime] = _now
    ) -> None:
        self._book, self._clock = book, clock
        self._runbooks = {path.name: path for path in runbooks.glob("*.md")}
        super().__init__("127.0.0.1", port, max_body_bytes=_MAX_BODY_BYTES)

    def respond(self, request: Request) -> Answer:
        """Takes a webhook; gives the pages and the runbooks."""
        folder, _, name = request.path.removeprefix("/").partition("/")
        if request.method == "POST":
            return self._take(folder, request.body)
        if request.path == "/":
            return Answer(HTTPStatus.OK, _PAGE.read_bytes(), HTML)
        if request.path == "/pages":
            return Answer(HTTPStatus.OK, json.dumps(self._book.newest()).encode(), JSON)
        runbook = self._runbooks.get(name) or self._runbooks.get(f"{name}.md")
        if folder == "runbooks" and runbook:
            return Answer(HTTPStatus.OK, runbook.read_bytes())
        return _text(HTTPStatus.NOT_FOUND, "there are /, /pages and /runbooks/NAME")

    def _take(self, receiver: str, body: bytes) -> Answer:
        if receiver not in RECEIVERS:
            return _text(HTTPStatus.NOT_FOUND, f"post to one of: {', '.join(RECEIVERS)}")
        try:
            page = read_webhook(body, receiver, self._clock())
        except WebhookError as error:
            return _text(HTTPStatus.BAD_REQUEST, str(error))
        try:
            self._book.add(page)
        except OSError as error:
            # Alertmanager tries again after a 5xx: the page is late, not lost.
            sentence = f"cannot keep the page: {error.strerror}"
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, sentence)
        click.echo(describe_alerts(page))
        return _text(HTTPStatus.OK, "")


def _text(status: HTTPStatus, sentence: str) -> Answer:
    return Answer(status, sentence.encode())


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), required=True, help="Port on loopback.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True, writable=True),
    required=True,
    help="Folder for pages.jsonl.",
)
def main(port: int, folder: Path) -> None:
    """Receive webhooks at /pager and /tickets until a signal ends the process."""
    with PagerServer(port, PageBook(folder), runbooks_path()) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
