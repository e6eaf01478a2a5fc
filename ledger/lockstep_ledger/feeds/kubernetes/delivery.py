"""The ledger over HTTP: what it has of a job, and events delivered to it in order."""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from lockstep_ledger.feeds.kubernetes.job_events import IDLE_SUFFIX
from lockstep_ledger.feeds.kubernetes.objects import count_of, list_of, part_of, text_of
from lockstep_ledger.feeds.kubernetes.pods import PodRun
from lockstep_ledger.feeds.kubernetes.server import ServerClock
from lockstep_records.file_access.token_files import read_token
from lockstep_records.text.printable import printable

_TIMEOUT_SECONDS = 30.0
_PAGE = 500


class AwayError(Exception):
    """The ledger does not answer, or refuses to; the text says which."""


@dataclass(slots=True)
class Remembered:
    """What the ledger has of a job.

    Attributes:
        uid: of the object that it is, by the feed's newest word; empty where that is none.
        is_ours: whether this feed speaks of it.
        sent: identities of its submissions and starts, as the feed that made them has them.
        runs: of its pods, as they were delivered, by name.
        has_succeeded: whether it is over: its name again is another job.
    """

    project: str = ""
    uid: str = ""
    kind: str = ""
    is_open: bool = True
    is_ours: bool = False
    sent: set[str] = field(default_factory=set)
    runs: dict[str, PodRun] = field(default_factory=dict)
    described: float = 0.0
    updated: float = 0.0
    has_succeeded: bool = False


class LedgerClient:
    """Requests to a ledger, each with the token in a file where it asks for one."""

    def __init__(self, url: str, cluster: str, writer: Path | None, reader: Path | None) -> None:
        self.cluster = cluster
        self._url, self._writer, self._reader = url.rstrip("/"), writer, reader
        self._client = httpx.Client(timeout=_TIMEOUT_SECONDS)

    def post(
        self, events: list[bytes], sent: float, report: dict[str, Any] | None
    ) -> tuple[int, dict[str, Any]]:
        """Deliver events, each as JSON; status and answer, or AwayError."""
        body = {
            "version": 1, "cluster": self.cluster, "node": "", "sent": sent, "feed": report,
            "events": list(map(msgspec.Raw, events)),
        }  # fmt: skip
        answer = self._request(
            "POST", "/api/events", self._writer, content=msgspec.json.encode(body)
        )
        try:
            return answer.status_code, dict(answer.json())
        except (ValueError, TypeError):
            return answer.status_code, {"error": answer.text[:200]}

    def list_open(self) -> Iterator[str]:
        """The ids of the jobs of the cluster that have no end; or AwayError."""
        for status in ("running", "pending"):
            after: int | None = None
            while True:
                query = {"cluster": self.cluster, "status": status, "limit": str(_PAGE)}
                page = (
                    self._read("/api/jobs", query | ({"after": str(after)} if after else {})) or {}
                )
                yield from (text_of(job.get("job_id")) for job in list_of(page.get("jobs")))
                after = page.get("next")
                if after is None:
                    break

    def find(self, job_id: str) -> Remembered | None:
        """What it has of a job, None where it has none; or AwayError."""
        document = self._read(f"/api/jobs/{quote(job_id, safe='')}", {"cluster": self.cluster})
        return None if document is None else _read_job(document)

    def _read(self, path: str, query: dict[str, str]) -> dict[str, Any] | None:
        answer = self._request("GET", path, self._reader, params=query)
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return None
        if answer.status_code != HTTPStatus.OK:
            raise AwayError(f"{self._url} answers {answer.status_code}: {answer.text[:200]}")
        return dict(answer.json())

    def _request(self, method: str, path: str, token: Path | None, **more: Any) -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        try:
            if token is not None:
                headers["Authorization"] = f"Bearer {read_token(token)}"
            return self._client.request(method, self._url + path, headers=headers, **more)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise AwayError(f"{self._url} does not answer: {error}") from error


def _read_job(document: dict[str, Any]) -> Remembered:
    found = Remembered(
        project=text_of(document.get("project")),
        has_succeeded=document.get("outcome") == "succeeded",
    )
    ends: set[str] = set()
    for event in list_of(document.get("timeline")):
        fields, time = part_of(event, "fields"), float(event.get("time") or 0.0)
        if event.get("node") or fields.get("source") != "kubernetes":
            continue
        found.is_ours, found.updated = True, max(found.updated, time)
        kind, uid = event.get("kind"), text_of(fields.get("object_uid"))
        if kind == "job_submitted":
            if uid != found.uid:
                found.uid, found.kind = uid, text_of(fields.get("object_kind"))
                found.sent, found.runs = set(), {}
            found.sent.add(f"submit {text_of(fields.get('submitted_as'))}")
            found.described = max(found.described, time)
        elif kind == "job_started" and uid == found.uid:
            found.sent.add(f"start {text_of(fields.get('opening'))}")
        elif kind == "job_finished" and not fields.get("goes_on"):
            ends.add(uid)
        elif kind in {"resources_allocated", "resources_released"} and uid == found.uid:
            _read_run(found.runs, str(kind), time, fields)
    found.is_open = found.uid not in ends
    return found


def _read_run(runs: dict[str, PodRun], kind: str, time: float, fields: Any) -> None:
    part = text_of(fields.get("part"))
    if fields.get("held_by") or part.endswith(IDLE_SUFFIX):
        return  # of no run that it knows already
    if kind == "resources_allocated":
        created = fields.get("pod_created")
        runs[part] = PodRun(
            part, part.partition("/")[0], time,
            float(created) if isinstance(created, int | float) else time,
            count_of(fields.get("num_gpus")), text_of(fields.get("node")),
            restart=count_of(fields.get("restart")),
        )  # fmt: skip
    elif part in runs:
        run, fate = runs[part], text_of(fields.get("fate"))
        run.end = time
        run.fate = fate if fate in {"succeeded", "failed", "disrupted", "taken"} else "unseen"  # type: ignore[assignment]  # checked


_log = logging.getLogger(__name__)
_BATCH = 500
_FIRST_WAIT_SECONDS, _LAST_WAIT_SECONDS = 0.5, 5.0
_DIVIDED = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_MOST_LOGGED = 20
_REPORT_SECONDS = 5.0


class Delivery(threading.Thread):
    """Sends what waits, and now and then the feed's report: until when, its counts, and more."""

    def __init__(
        self,
        ledger: LedgerClient,
        clock: ServerClock,
        report: Callable[[], tuple[float, Counter[str], dict[str, Any]]],
    ) -> None:
        super().__init__(name="deliver", daemon=True)
        self._ledger, self._clock, self._report, self._sent = ledger, clock, report, 0.0
        self._answered: Counter[str] = Counter()
        self._reported: Counter[str] = Counter()
        self._until = 0.0
        self._waiting: deque[bytes] = deque()  # as JSON, which is smaller than what it encodes
        self._wake, self._ending = threading.Event(), threading.Event()
        self._size, self._complaint = _BATCH, ""

    @property
    def waiting(self) -> int:
        """Events that the ledger has not acknowledged."""
        return len(self._waiting)

    def put(self, events: list[dict[str, Any]]) -> None:
        """Add events."""
        self._waiting.extend(map(msgspec.json.encode, events))
        self._wake.set()

    def end(self, seconds: float) -> None:
        """Send what waits, for so long at most, and end."""
        deadline = time.monotonic() + seconds
        while self._waiting and time.monotonic() < deadline:
            time.sleep(0.05)
        self._ending.set()
        self._wake.set()

    def run(self) -> None:
        """Send until the end."""
        wait = _FIRST_WAIT_SECONDS
        while not self._ending.is_set():
            if not self._waiting and time.monotonic() - self._sent < _REPORT_SECONDS:
                self._wake.wait(min(1.0, _REPORT_SECONDS))
                self._wake.clear()
                continue
            try:
                self._send()
                wait, self._complaint = _FIRST_WAIT_SECONDS, ""
            except AwayError as error:
                if not self._complaint:
                    self._complaint = str(error)
                    _log.warning("ledger=away reason=%r", printable(str(error), 300))
                self._ending.wait(wait)
                wait = min(2 * wait, _LAST_WAIT_SECONDS)

    def _send(self) -> None:
        # Before the batch is chosen: what is put in later is not what the report speaks of.
        until, counts, report = self._report()
        batch = [self._waiting[i] for i in range(min(self._size, len(self._waiting)))]
        num_left = len(self._waiting) - len(batch)
        self._until = self._until if num_left else until
        counts += self._answered
        report |= {"time": self._until, "waiting": num_left, "left_out": 0}
        report |= counts - self._reported
        # Without a first complete delivery nothing is known to be in the ledger.
        sent = self._clock.now()
        status, answer = self._ledger.post(batch, sent, report if self._until else None)
        if status in _DIVIDED and len(batch) > 1:
            self._size = max(1, len(batch) // 2)
            return
        if status not in {HTTPStatus.OK, HTTPStatus.UNPROCESSABLE_ENTITY, *_DIVIDED}:
            raise AwayError(f"the ledger answers {status}: {answer.get('error', '')}")
        rejected = answer.get("rejected") or (
            [{"reason": answer.get("error")}] if status in _DIVIDED else []
        )
        for each in rejected:
            if self._answered["refused"] < _MOST_LOGGED:
                _log.warning(
                    "event=refused id=%s reason=%r",
                    each.get("id"),
                    printable(str(each.get("reason"))),
                )
            self._answered["refused"] += 1
        self._answered["delivered"] += len(batch) - len(rejected)
        self._reported = counts if self._until else self._reported
        self._sent = time.monotonic()
        self._size = min(2 * self._size, _BATCH)
        for _ in batch:
            self._waiting.popleft()
