"""POST /api/events: checks a delivery, commits it with what has queued, and answers then."""

import asyncio
import json
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from lockstep_catalogue.ledger import COMMIT_DURATION
from lockstep_ledger.ingest.document import DeliveryError, Feeds, RefusedEvent, read_delivery
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import SharedWriter
from lockstep_ledger.web.grants import Grant, Tokens
from lockstep_ledger.web.middleware import client_of

_log = logging.getLogger(__name__)
_MAX_EVENTS = 2000
_MAX_QUEUED = 1000
_TICK_SECONDS = 1.0
# A transaction costs a write to disk and about as much computing as ten events: a moment's requests
# share one.
_GATHER_SECONDS = 0.005
_STOP_SECONDS = 20.0
# So long a commit may take before this ledger calls itself unready.
_SLOW_SECONDS = 5.0


class BusyError(RuntimeError):
    """So much has queued that a client should send later."""


class StoreUnavailableError(RuntimeError):
    """The database did not take the events; nothing of the request is stored."""


@dataclass(slots=True)
class _Waiting:
    submission: Submission
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class GroupCommit:
    """The writer's thread: commits what has queued, then answers; between, it settles jobs.

    ``on_end`` is called when it ends, also by an error of ours: the program ends then too, and its
    supervisor starts it again.
    """

    def __init__(self, writer: SharedWriter, on_end: Callable[[], None] = lambda: None) -> None:
        self._writer, self._on_end = writer, on_end
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(_MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._failure = ""
        self.stored = self.duplicates = self.refused = 0
        self.commit_counts = [0] * (len(COMMIT_DURATION.buckets) + 1)
        self.commit_seconds = 0.0

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Commits what has queued and ends the thread."""
        self._queue.put(None)
        self._thread.join(_STOP_SECONDS)

    @property
    def is_alive(self) -> bool:
        """Whether the thread still writes."""
        return self._thread.is_alive()

    @property
    def objection(self) -> str:
        """Why no event can be stored now; empty where all can."""
        if not self.is_alive:
            return "the writer has stopped"
        if self._failure:
            return f"the store takes no events: {self._failure}"
        waiting_seconds = self._writer.waiting_seconds
        if waiting_seconds > _SLOW_SECONDS:
            return f"the store has not answered for {waiting_seconds:.0f} s"
        return ""

    async def submit(self, submission: Submission) -> None:
        """Returns once the submission is on the disk; raises BusyError or StoreUnavailableError."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(submission, loop, loop.create_future())
        try:
            self._queue.put_nowait(waiting)
        except queue.Full as error:
            raise BusyError(f"{_MAX_QUEUED} requests wait to be stored") from error
        await waiting.future

    def _run(self) -> None:
        next_settle_seconds = 0.0
        try:
            while True:
                batch, is_last = self._collect()
                if batch:
                    self._commit(batch)
                if time.monotonic() >= next_settle_seconds:
                    next_settle_seconds = time.monotonic() + _TICK_SECONDS
                    self._settle()
                if is_last:
                    return
        finally:
            self._on_end()

    def _collect(self) -> tuple[list[_Waiting], bool]:
        batch: list[_Waiting] = []
        num_events = 0
        try:
            entry = self._queue.get(timeout=_TICK_SECONDS)
            time.sleep(_GATHER_SECONDS)
            while entry is not None:
                batch.append(entry)
                num_events += len(entry.submission.events)
                if num_events >= _MAX_EVENTS:
                    return batch, False
                entry = self._queue.get_nowait()
        except queue.Empty:
            return batch, False
        return batch, True

    def _commit(self, batch: list[_Waiting]) -> None:
        begin_seconds = time.perf_counter()
        failure: StoreUnavailableError | None = None
        try:
            self._writer.write([waiting.submission for waiting in batch])
        except SQLAlchemyError as error:
            failure = StoreUnavailableError(_cause(error))
            self._log_away(str(failure))
        else:
            self._count(batch, time.perf_counter() - begin_seconds)
        for loop, futures in groupby(batch, key=lambda waiting: waiting.loop):
            # The loop of a client that hung up may be closed when the ledger ends.
            if not loop.is_closed():
                loop.call_soon_threadsafe(_answer, [w.future for w in futures], failure)

    def _settle(self) -> None:
        try:
            self._writer.settle_due()
        except SQLAlchemyError as error:
            self._log_away(_cause(error))
        else:
            self._log_back()

    def _count(self, batch: list[_Waiting], seconds: float) -> None:
        self._log_back()
        for waiting in batch:
            self.stored += waiting.submission.stored
            self.duplicates += waiting.submission.duplicates
            self.refused += len(waiting.submission.refused)
        position = sum(seconds > bound for bound in COMMIT_DURATION.buckets)
        self.commit_counts[position] += 1
        self.commit_seconds += seconds

    def _log_away(self, reason: str) -> None:
        if not self._failure:
            _log.error("store=away reason=%r", reason)
        self._failure = reason or "no reason"

    def _log_back(self) -> None:
        if self._failure:
            _log.info("store=back")
        self._failure = ""


def _answer(futures: list[asyncio.Future[None]], failure: StoreUnavailableError | None) -> None:
    for future in futures:
        if future.done():  # the client hung up
            continue
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)


def _cause(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0]


_MAX_LETTER_CHARACTERS = 4096
_SILENT_SECONDS, _MAX_SPEAKERS = 60.0, 10_000
_STATUS = {"size": 413, "token": 401, "scope": 403}


@dataclass(slots=True)
class Intake:
    """Takes deliveries."""

    group_commit: GroupCommit
    writers: Tokens
    max_body_bytes: int
    refusals: Counter[str] = field(default_factory=Counter)
    feeds: Feeds = field(default_factory=Feeds)
    _silent_until: dict[str, float] = field(default_factory=dict)

    async def deliver(self, request: Request) -> Response:
        """The answer to one delivery (docs/formats/event-delivery.md)."""
        body = b""
        try:
            grant = self._grant(request)
            body = await self._body(request)
            delivery = read_delivery(body, time.time(), grant.speaker)
            speaker = delivery.speaker
            submission = Submission(
                delivery.events, list(delivery.refused), client_of(request.scope), speaker
            )
            await self.group_commit.submit(submission)
            if speaker.clusters is None or speaker.cluster in speaker.clusters:
                self.feeds.take(speaker.cluster, delivery.feed)
        except DeliveryError as error:
            return await self._refuse(request, error, body)
        except ClientDisconnect:
            return Response(status_code=400)
        except (BusyError, StoreUnavailableError) as error:
            return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})
        return self._answer(submission)

    def _grant(self, request: Request) -> Grant:
        grant = self.writers.grant(request.headers.get("authorization", ""))
        if grant is None:
            raise DeliveryError("token", "the token is not a writer's; send a bearer token")
        return grant

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.max_body_bytes:
                raise DeliveryError(
                    "size",
                    f"the body is longer than {self.max_body_bytes} bytes; send fewer events at"
                    " once",
                )
        return bytes(body)

    def _answer(self, submission: Submission) -> Response:
        self.refusals.update(letter.refusal for letter in submission.refused)
        self._log_refusals(submission)
        has_good = submission.stored or submission.duplicates or not submission.refused
        return JSONResponse(submission.answer(), 200 if has_good else 422)

    def _log_refusals(self, submission: Submission) -> None:
        """Names speaker, statement and rule of a refusal, at most once a minute a speaker."""
        now, speaker = time.monotonic(), str(submission.speaker)
        if not submission.refused or now < self._silent_until.get(speaker, 0.0):
            return
        if len(self._silent_until) >= _MAX_SPEAKERS:
            self._silent_until.clear()
        self._silent_until[speaker] = now + _SILENT_SECONDS
        letter, count = submission.refused[0], len(submission.refused)
        _log.warning(
            "refused=%d speaker=%r job=%.100r rule=%s reason=%.400r",
            count, speaker, letter.job_id, letter.refusal, letter.reason,
        )  # fmt: skip

    async def _refuse(self, request: Request, error: DeliveryError, body: bytes) -> Response:
        """Keeps the refused request as a dead letter; of a stranger's nothing but the address."""
        self.refusals[error.refusal] += 1
        text = body[:_MAX_LETTER_CHARACTERS].decode("utf-8", "replace")
        letter = RefusedEvent(refusal=error.refusal, reason=str(error), body=json.dumps(text))
        try:
            await self.group_commit.submit(Submission((), [letter], client_of(request.scope)))
        except (BusyError, StoreUnavailableError) as unstored:
            return JSONResponse({"error": str(unstored)}, 503, {"Retry-After": "1"})
        headers = {"WWW-Authenticate": "Bearer"} if error.refusal == "token" else {}
        answer = {"error": str(error), "refusal": error.refusal}
        return JSONResponse(answer, _STATUS.get(error.refusal, 400), headers)
