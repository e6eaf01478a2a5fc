"""POST /api/events: checks a delivery, stores it, and answers after the commit."""

import json
import time
from collections import Counter
from dataclasses import dataclass, field, replace

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from lockstep_ledger.ingest.document import Delivery, DeliveryError, RefusedEvent, read_delivery
from lockstep_ledger.ingest.feeds import Feeds
from lockstep_ledger.store.transaction import Submission, letter_of
from lockstep_ledger.web.grants import Grant, Tokens
from lockstep_ledger.web.group_commit import BusyError, GroupCommit, StoreUnavailableError
from lockstep_ledger.web.middleware import client_of
from lockstep_records.events.event import Event

_MAX_LETTER_CHARACTERS = 4096
_STATUS = {"size": 413, "token": 401}


@dataclass(slots=True)
class Intake:
    """Takes deliveries."""

    group_commit: GroupCommit
    writers: Tokens
    max_body_bytes: int
    refusals: Counter[str] = field(default_factory=Counter)
    feeds: Feeds = field(default_factory=Feeds)

    async def deliver(self, request: Request) -> Response:
        """The answer to one delivery (docs/formats/event-delivery.md)."""
        body = b""
        try:
            grant = self._grant(request)
            body = await self._body(request)
            delivery = granted(read_delivery(body, time.time()), grant)
            submission = Submission(
                delivery.events, list(delivery.refused), client_of(request.scope)
            )
            await self.group_commit.submit(submission)
            self.feeds.take(delivery.cluster, delivery.feed)
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
        """The body; of one over the limit the rest is not read."""
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
        has_good = submission.stored or submission.duplicates or not submission.refused
        return JSONResponse(submission.answer(), 200 if has_good else 422)

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


def granted(delivery: Delivery, grant: Grant) -> Delivery:
    """The delivery as far as a token permits it; its other events are refused."""
    if grant == Grant():
        return delivery
    events: list[Event] = []
    refused = list(delivery.refused)
    for event in delivery.events:
        objection = grant.objection(event)
        if not objection:
            events.append(grant.stamped(event))
            continue
        refused.append(letter_of(event, "scope", objection))
    # A launcher or an agent that called itself a feed could hide that the feed is away.
    is_feed = grant.scope in {"", "scheduler"} and (
        grant.clusters is None or delivery.cluster in grant.clusters
    )
    feed = delivery.feed if is_feed else None
    return replace(delivery, events=tuple(events), refused=tuple(refused), feed=feed)
