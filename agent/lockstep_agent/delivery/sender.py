"""Delivers the events of the node's jobs to the ledger, as a collector that counts them."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from lockstep_agent.collector import Reading, Tier
from lockstep_catalogue import agent
from lockstep_records.delivery.duty import DeliveryDuty
from lockstep_records.delivery.sender import LedgerAddress, Post, Sender, post
from lockstep_records.delivery.spool import EventSpool
from lockstep_records.events import Event


class EventSource(Protocol):
    """Something that finds events which are in no file."""

    def poll(self) -> list[Event]:
        """What is new since the last call."""
        ...


class Delivery:
    """Sends what waits in the spool, one batch a tick.

    Args:
        spool: events that wait.
        address: of the ledger; None delivers nothing and keeps nothing.
        origin: names of the cluster and of this node.
        sources: find events that are in no file.
        duty: tells launchers on the node that they need not deliver; None tells nobody.
        send: posts a body to an address.
        clock: monotonic, in seconds.
    """

    name = "delivery"

    def __init__(
        self,
        spool: EventSpool,
        address: LedgerAddress | None,
        origin: tuple[str, str],
        *,
        sources: Sequence[EventSource] = (),
        duty: DeliveryDuty | None = None,
        send: Post = post,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tier = Tier.TEN_SECONDS if address is None else Tier.EVERY_TICK
        self._spool, self._duty, self._sources = spool, duty, sources
        self._sender = None if address is None else Sender(spool, address, origin, send, clock)

    def collect(self) -> Iterator[Reading]:
        """Takes in new events, delivers one batch when it is due, and counts events by outcome."""
        delivered = refused = 0
        if self._sender is not None:
            if self._duty is not None:
                self._duty.take()
            for source in self._sources:
                self._spool.add(source.poll())
            self._sender.run_once()
            delivered = self._sender.delivered
            refused = self._sender.refused + self._spool.refused
        yield Reading(agent.EVENTS_PENDING, (), self._spool.num_pending)
        yield Reading(agent.EVENTS_SPOOL_RATIO, (), self._spool.fill_ratio)
        yield Reading(agent.EVENTS, ("delivered",), delivered)
        yield Reading(agent.EVENTS, ("refused",), refused)
        yield Reading(agent.EVENTS, ("dropped",), self._spool.dropped)
