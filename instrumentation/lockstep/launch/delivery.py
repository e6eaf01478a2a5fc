"""Delivers events from the launcher where no agent of the node does; training never waits."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lockstep.launch.job import Job
from lockstep_records.delivery.duty import DeliveryDuty
from lockstep_records.delivery.sender import Sender
from lockstep_records.delivery.spool import EventSpool
from lockstep_records.events.event import node_name

log = logging.getLogger("lockstep")
_POLL_SECONDS = 1.0
# The ranks have ended by then. What is left waits on the node for the next launcher or an agent.
_DRAIN_SECONDS = 10.0


@contextmanager
def deliver_events(job: Job) -> Iterator[None]:
    """Delivers during the block, and after it for ten seconds at most what the block left."""
    if job.ledger is None:
        yield
        return
    delivery = _LauncherDelivery(job)
    thread = threading.Thread(target=delivery.run, name="delivery", daemon=True)
    thread.start()
    try:
        yield
    finally:
        delivery.finish()
        thread.join(_DRAIN_SECONDS + 2 * _POLL_SECONDS)


class _LauncherDelivery:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._duty = DeliveryDuty(job.root)
        self._over = threading.Event()
        self._deadline_seconds = float("inf")

    def finish(self) -> None:
        """Asks the thread to send what is left and to end."""
        self._deadline_seconds = time.monotonic() + _DRAIN_SECONDS
        self._over.set()

    def run(self) -> None:
        """Sends while it is this launcher's duty, until the job is over and nothing waits."""
        sender: Sender | None = None
        spool: EventSpool | None = None
        while True:
            is_last = self._over.is_set()
            took = False
            if self._duty.take():
                if sender is None:
                    spool, sender = self._open()
                took = sender.run_once()
            done = spool is None or not spool.num_pending
            if is_last and (done or time.monotonic() > self._deadline_seconds):
                break
            if not took:
                # A job that is over is not waited for by the second.
                time.sleep(_POLL_SECONDS / 10) if is_last else self._over.wait(_POLL_SECONDS)
        if spool is not None:
            if spool.num_pending:
                log.warning("%d events wait on this node for the ledger", spool.num_pending)
            spool.close()
        self._duty.release()

    def _open(self) -> tuple[EventSpool, Sender]:
        assert self._job.ledger is not None
        # On the tmpfs, which all launchers of this user share: the next one sends what is left.
        spool = EventSpool(self._job.root, self._job.root / f"spool-{os.getuid()}.sqlite")
        return spool, Sender(spool, self._job.ledger, (self._job.cluster, node_name()))
