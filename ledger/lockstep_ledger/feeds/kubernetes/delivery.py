"""Delivers events to the ledger: in order, again until it answers, each counted once."""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec

from lockstep_ledger.feeds.kubernetes.ledger_client import AwayError, LedgerClient
from lockstep_ledger.feeds.kubernetes.server import ServerClock
from lockstep_records.text.printable import printable

_log = logging.getLogger(__name__)
_BATCH = 500
_FIRST_WAIT_SECONDS, _LAST_WAIT_SECONDS = 0.5, 5.0
_DIVIDED = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_MOST_LOGGED = 20
_REPORT_SECONDS = 5.0


class Delivery(threading.Thread):
    """Sends what waits, and now and then how far the feed is.

    Args:
        report: of the feed on itself: until when it has handed over everything, its counts so
            far, and what else the ledger shows.
    """

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
        report |= {"time": self._until, "waiting": num_left, "rows": 0, "left_out": 0}
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
