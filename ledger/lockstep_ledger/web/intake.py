"""POST /api/events: checks a delivery, commits it with what has queued, answers then; tokens."""

import asyncio
import base64
import binascii
import hashlib
import json
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from lockstep_catalogue.ledger import COMMIT_DURATION
from lockstep_ledger.ingest.document import DeliveryError, Feeds, RefusedEvent, read_delivery
from lockstep_ledger.ingest.speakers import Scope, Speaker
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import SharedWriter
from lockstep_ledger.web.middleware import client_of
from lockstep_records.events.bounds import is_printable
from lockstep_records.file_access.token_files import TokenLine, read_token_lines

WRITER_SCOPES = ("agent", "launcher", "scheduler")
EVERY_NODE = "*"
"""Of a token that the agents of a fleet share: whoever has it speaks for every node."""
_WORDS = ("scope", "clusters", "projects", "owner", "node")
_MAX_OWNER = 2**32 - 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """What a token may do; without any scope everything that its file grants.

    Attributes:
        scope: one of ``WRITER_SCOPES``, ``reader``, or empty for any writer.
        owner: user id that is stamped on every event of a launcher.
        node: of an agent, the only one; every one with ``*``, the first it speaks of where empty.
        taken: nodes that other tokens have for themselves.
    """

    scope: str = ""
    clusters: frozenset[str] | None = None
    projects: frozenset[str] | None = None
    owner: int | None = None
    node: str = ""
    name: str = field(default="", compare=False)
    taken: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def limits(self) -> dict[str, frozenset[str]]:
        """Allowed values by column of a job; empty where everything is allowed."""
        limits = {"cluster": self.clusters, "project": self.projects}
        return {name: values for name, values in limits.items() if values is not None}

    def speaker(self, cluster: str, node: str) -> Speaker:
        """Who speaks with this token of a cluster and a node; DeliveryError for another's node."""
        scope: Scope = self.scope or "operator"  # type: ignore[assignment]  # of WRITER_SCOPES
        if node != self.node and (self.node or node in self.taken) and self.node != EVERY_NODE:
            whose = f"this token is of {self.node!r}" if self.node else "it has a token of its own"
            raise DeliveryError("scope", f"node {node!r:.80} is not this speaker's: {whose}")
        return Speaker(
            scope=scope, cluster=cluster, node=node, uid=self.owner, token=self.name,
            is_pinned=scope == "agent" and not self.node,
            clusters=self.clusters, projects=self.projects,
        )  # fmt: skip


class Tokens:
    """Grants by token; without any token everybody may do everything."""

    def __init__(self, grants: Mapping[str, Grant]) -> None:
        # Found by digest: how long a search takes tells nothing about the token.
        nodes = frozenset(grant.node for grant in grants.values() if grant.scope == "agent")
        self._grants = {
            (digest := _digest(token.encode())): replace(
                grant,
                name=digest.hex()[:12],
                taken=nodes if grant.scope == "agent" else frozenset(),
            )
            for token, grant in grants.items()
        }

    def grant(self, authorization: str) -> Grant | None:
        """What a header ``Authorization`` permits, as bearer or as password; None for nothing."""
        if not self._grants:
            return Grant()
        return self._grants.get(_digest(_token(authorization)))

    def digest(self, authorization: str) -> bytes:
        """The digest of an accepted token; empty for every other."""
        digest = _digest(_token(authorization))
        return digest if digest in self._grants else b""


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _token(authorization: str) -> bytes:
    """The token of a header, empty without one; browsers send it as the password of any user."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip().encode()
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def read_tokens(path: Path | None, scopes: tuple[str, ...]) -> Tokens:
    """The tokens of a file for these scopes, none without a file; a ValueError has the line."""
    grants: dict[str, Grant] = {}
    for line in read_token_lines(path) if path else ():
        try:
            grant = _read_grant(line, scopes)
        except ValueError as error:
            raise ValueError(f"{path} line {line.number}: {error}") from error
        if line.token in grants:
            raise ValueError(f"{path} line {line.number}: the token was given before; keep one")
        grants[line.token] = grant
    return Tokens(grants)


def _read_grant(line: TokenLine, scopes: tuple[str, ...]) -> Grant:
    words: dict[str, str] = {}
    for word in line.words:
        name, _, value = word.partition("=")
        if name not in _WORDS:
            raise ValueError(f"word {word[:80]!r} is unknown; give one of {'=, '.join(_WORDS)}=")
        if name in words:
            raise ValueError(f"{name} is given twice; give it once")
        words[name] = value
    scope = words.get("scope", "")
    if "scope" in words and scope not in scopes:
        raise ValueError(f"scope {scope[:80]!r} does not belong here; give {' or '.join(scopes)}")
    return Grant(
        scope=scope,
        clusters=_read_names(words, "clusters"),
        projects=_read_names(words, "projects"),
        owner=_read_owner(words.get("owner"), scope),
        node=_read_node(words.get("node"), scope),
    )


def _read_names(words: Mapping[str, str], name: str) -> frozenset[str] | None:
    if name not in words:
        return None
    names = words[name].split(",")
    if not all(part and is_printable(part) for part in names):
        raise ValueError(f"{name} {words[name][:80]!r} must be names with commas between, as a,b")
    return frozenset(names)


def _read_owner(text: str | None, scope: str) -> int | None:
    if text is None:
        return None
    if scope != "launcher":
        raise ValueError("owner belongs to a token of scope=launcher; leave it out")
    if not text.isdigit() or len(text) > len(str(_MAX_OWNER)) or int(text) > _MAX_OWNER:
        raise ValueError(f"owner {text[:80]!r} must be a user id, 0 to {_MAX_OWNER}")
    return int(text)


def _read_node(name: str | None, scope: str) -> str:
    if name is None:
        return ""
    if scope != "agent" or not name or not is_printable(name):
        raise ValueError(f"node {name[:80]!r} must be the name of the node of a scope=agent, or *")
    return name


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
