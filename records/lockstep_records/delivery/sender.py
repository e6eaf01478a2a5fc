"""Sends the events of a spool to the ledger, at least once, in order (event-delivery.md)."""

import json
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from lockstep_records.delivery.exchange import Answer, Request, exchange
from lockstep_records.delivery.spool import EventSpool, SpooledEvent
from lockstep_records.events.kinds import VERSION
from lockstep_records.file_access.token_files import read_token

_log = logging.getLogger(__name__)
MAX_BATCH = 100
MAX_BATCH_BYTES = 512 << 10
"""Half of what a ledger takes at least; the largest event is a quarter of it."""
_TIMEOUT_SECONDS, _DEADLINE_SECONDS = 2.0, 10.0
_MIN_WAIT_SECONDS, _MAX_WAIT_SECONDS = 1.0, 60.0
_MAX_ANSWER_BYTES = 1 << 20
_ABOUT_EVENTS = frozenset({400, 413, 422})
"""Statuses by which a receiver refuses what it got, and neither the sender nor the moment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerAddress:
    """The ledger's intake, and files of its token, read each time, and of its certificates."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None


Post = Callable[[LedgerAddress, bytes], Answer]
"""Sends a body and returns the answer; raises OSError without one."""


def post(address: LedgerAddress, body: bytes | None) -> Answer:
    """The answer to a delivery, or to a GET without a body; a redirect is an answer like any other.

    A token is for the ledger that its user named: no redirect is followed with it. Raises OSError
    without an answer that is trusted in time, ValueError where token or address is malformed.
    """
    headers = {"Content-Type": "application/json"}
    if address.token_file is not None:
        headers["Authorization"] = f"Bearer {read_token(address.token_file)}"
    request = Request(
        url=address.url,
        method="GET" if body is None else "POST",
        body=body,
        headers=headers,
        ca_file=address.ca_file,
        wait_seconds=_TIMEOUT_SECONDS,
        max_bytes=_MAX_ANSWER_BYTES,
    )
    return exchange(request)


class Sender:
    """Sends the events of a spool in batches, with exponential backoff while no answer comes.

    A ledger names the events that it refuses. They are set aside in the spool; ``lockstep ledger
    replay --spool`` lets them wait again. Where a receiver refuses a batch and names none, each is
    sent alone.

    Args:
        origin: names of the cluster and of this node.
        wall_clock: by which the ledger corrects the times of events where this node's is wrong.
    """

    def __init__(
        self,
        spool: EventSpool,
        address: LedgerAddress,
        origin: tuple[str, str],
        send: Post = post,
        clock: Callable[[], float] = time.monotonic,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._wall_clock = wall_clock
        self._spool, self._address, self._origin = spool, address, origin
        self._send, self._clock = send, clock
        self._wait_seconds = 0.0
        self._next_seconds = clock()
        self.delivered = self.refused = 0

    def run_once(self) -> bool:
        """Takes in new events and sends one batch when it is due; whether the ledger took it."""
        self._spool.refresh()
        if not self._spool.num_pending or self._clock() < self._next_seconds:
            return False
        batch = self._spool.next_batch(MAX_BATCH, MAX_BATCH_BYTES)
        try:
            answer, answered, refusals = self._deliver(batch)
            if not answered and answer.status in _ABOUT_EVENTS:
                answered, refusals = self._each_alone(batch)
        except (OSError, ValueError) as error:  # ValueError: the file of the token is refused
            self._wait(str(error))
            return False
        if not answered:
            self._wait(f"status {answer.status}{_text_of(answer)}")
            return False
        self._spool.remove(answered, refusals)
        self.refused += len(refusals)
        self.delivered += len(answered) - len(refusals)
        if self._wait_seconds:
            _log.info("ledger=answers")
        self._wait_seconds = 0.0
        return True

    def _deliver(
        self, batch: list[SpooledEvent]
    ) -> tuple[Answer, list[SpooledEvent], dict[int, str]]:
        """The answer, the events that are done with, and why some of them are refused."""
        answer = self._send(self._address, self._body(batch))
        refusals = self._refusals(batch, answer)
        is_taken = HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES
        answered = batch if is_taken else [each for each in batch if each.number in refusals]
        return answer, answered, refusals

    def _each_alone(self, batch: list[SpooledEvent]) -> tuple[list[SpooledEvent], dict[int, str]]:
        """The events that are done with where a receiver names none of those that it refuses.

        Each is sent alone, for a while. One that is refused alone is at fault only where the same
        receiver takes another; else it refuses all, and they wait.
        """
        end_seconds = self._clock() + _DEADLINE_SECONDS
        judged: list[SpooledEvent] = []
        refusals: dict[int, str] = {}
        is_about_events = False
        for event in batch:
            answer, answered, named = self._deliver([event])
            if not answered and answer.status not in _ABOUT_EVENTS:
                break
            is_about_events |= bool(answered)
            judged.append(event)
            reason = f"status {answer.status}{_text_of(answer)}"
            refusals |= named if answered else {event.number: reason}
            if self._clock() >= end_seconds:
                break
        return (judged, refusals) if is_about_events else ([], {})

    def _refusals(self, batch: list[SpooledEvent], answer: Answer) -> dict[int, str]:
        """Reason by number of each event that the answer refuses; one of each user is logged."""
        reasons = dict(_rejections(answer))
        ids = {event.number: json.loads(event.text)["id"] for event in batch} if reasons else {}
        found = {number: reasons[name] for number, name in ids.items() if name in reasons}
        first = {event.owner: event.number for event in reversed(batch) if event.number in found}
        for owner, number in first.items():
            _log.warning(
                "ledger=refused owner=%d event=%.100s reason=%.400r", owner, ids[number],
                found[number],
            )  # fmt: skip
        return found

    def _wait(self, reason: str) -> None:
        if not self._wait_seconds:
            _log.warning("ledger=away reason=%r", reason)
        self._wait_seconds = min(max(self._wait_seconds * 2, _MIN_WAIT_SECONDS), _MAX_WAIT_SECONDS)
        # Spread, so that all nodes do not meet a ledger that is back at once.
        self._next_seconds = self._clock() + self._wait_seconds * random.uniform(0.5, 1.0)

    def _body(self, batch: list[SpooledEvent]) -> bytes:
        cluster, node = self._origin
        # The lines are JSON already: decoded and encoded again, a number could change its digits.
        events = ",".join(event.text for event in batch)
        sent = round(self._wall_clock(), 3)
        head = json.dumps({"version": VERSION, "cluster": cluster, "node": node, "sent": sent})
        return f'{head[:-1]},"events":[{events}]}}'.encode()


def _rejections(answer: Answer) -> list[tuple[str, str]]:
    """Id and reason of each event that a ledger left out of a batch that it took."""
    try:
        rejected = json.loads(answer.body or b"{}").get("rejected", ())
        return [(str(entry["id"]), str(entry["reason"])) for entry in rejected[:MAX_BATCH]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []


def _text_of(answer: Answer) -> str:
    """What the ledger wrote about it, for a line of the log."""
    text = answer.body[:200].decode(errors="replace").strip()
    return f" answer={text!r}" if text else ""
