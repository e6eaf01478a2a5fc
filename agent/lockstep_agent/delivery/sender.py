"""Delivers the events of jobs to the ledger, at least once, in order (docs/event-delivery.md)."""

import json
import logging
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.delivery.spool import Spool, WireEvent
from lockstep_catalogue import health

_log = logging.getLogger(__name__)
_MAX_BATCH = 100
_TIMEOUT_SECONDS = 2.0
_MIN_WAIT_SECONDS, _MAX_WAIT_SECONDS = 1.0, 60.0
# Numbers, because the names of two of them differ between versions of Python.
_REFUSALS = frozenset({400, 413, 422})

Post = Callable[[str, bytes], int]
"""Sends a body and returns the status of the answer; raises OSError without an answer."""


def post(url: str, body: bytes) -> int:
    """The status of the ledger's answer.

    Raises:
        OSError: there is no answer.
    """
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310  # http only, checked
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310  # as above
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


class Delivery:
    """Sends the events of the spool in batches, with exponential backoff while there is no ledger.

    An event that the ledger refuses on its own is left out, so that it does not hold up the rest.

    Args:
        spool: events that wait.
        url: of the ledger; None delivers nothing and keeps nothing.
        origin: names of the cluster and of this node.
        send: posts a body to an address.
        clock: monotonic, in seconds.
    """

    name = "delivery"

    def __init__(
        self,
        spool: Spool,
        url: str | None,
        origin: tuple[str, str],
        send: Post = post,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tier = Tier.TEN_SECONDS if url is None else Tier.EVERY_TICK
        self._spool, self._url, self._origin = spool, url, origin
        self._send, self._clock = send, clock
        self._max_batch = _MAX_BATCH
        self._wait_seconds = 0.0
        self._next_seconds = clock()
        self._delivered = self._refused = 0

    def collect(self) -> Iterator[Reading]:
        """Takes in new events, delivers one batch when it is due, and counts events by outcome."""
        if self._url is not None:
            self._spool.refresh()
            if self._spool.pending and self._clock() >= self._next_seconds:
                self._deliver(self._url)
        yield Reading(health.EVENTS_PENDING, (), len(self._spool.pending))
        yield Reading(health.EVENTS, ("delivered",), self._delivered)
        yield Reading(health.EVENTS, ("refused",), self._refused)
        yield Reading(health.EVENTS, ("dropped",), self._spool.dropped)

    def _deliver(self, url: str) -> None:
        batch = self._spool.pending[: self._max_batch]
        try:
            status = self._send(url, self._body(batch))
        except OSError as error:
            self._wait(str(error))
            return
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            self._delivered += len(batch)
            self._spool.remove_oldest(len(batch))
            self._max_batch = min(self._max_batch * 2, _MAX_BATCH)
        # These are about the events; every other status is about the ledger, which may recover.
        elif status in _REFUSALS:
            self._refuse(batch, status)
        else:
            self._wait(f"status {status}")
            return
        self._wait_seconds = 0.0

    def _refuse(self, batch: list[WireEvent], status: int) -> None:
        """Halves a refused batch for the next time; a single event that is refused is left out."""
        if len(batch) > 1:
            self._max_batch = len(batch) // 2
            return
        _log.warning("ledger=refused event=%s status=%s", batch[0].get("id"), status)
        self._refused += 1
        self._spool.remove_oldest(1)

    def _wait(self, reason: str) -> None:
        if not self._wait_seconds:
            _log.warning("ledger=away reason=%r", reason)
        self._wait_seconds = min(max(self._wait_seconds * 2, _MIN_WAIT_SECONDS), _MAX_WAIT_SECONDS)
        # Spread, so that all nodes do not meet a ledger that is back at once.
        self._next_seconds = self._clock() + self._wait_seconds * random.uniform(0.5, 1.0)

    def _body(self, batch: list[WireEvent]) -> bytes:
        cluster, node = self._origin
        message = {"version": 1, "cluster": cluster, "node": node, "events": batch}
        return json.dumps(message, separators=(",", ":")).encode()
