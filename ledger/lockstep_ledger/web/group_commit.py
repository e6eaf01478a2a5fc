"""Collects what has queued into one transaction, so that many requests share one write to disk."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy.exc import SQLAlchemyError

from lockstep_catalogue.ledger import COMMIT_DURATION
from lockstep_ledger.store.shared_writer import SharedWriter
from lockstep_ledger.store.transaction import Submission

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

    Args:
        writer: used by this thread alone from the start on.
        on_end: called when the thread ends, also by an error of ours: the program ends then too,
            and its supervisor starts it again.
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
        """Returns once the submission is on the disk.

        Raises:
            BusyError: too much has queued.
            StoreUnavailableError: the database failed; nothing is stored.
        """
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
        """What has queued, up to a limit, and whether the thread shall end."""
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
