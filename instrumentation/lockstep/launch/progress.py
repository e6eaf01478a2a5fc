"""Watches the pages of the launcher's ranks and writes what follows from them as events."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep_outcomes.progress.progress_events import Moments, ProgressEvents, moments_of
from lockstep_records.events.event import append_event, read_events
from lockstep_records.files.jobs import list_attempts, pages_of

log = logging.getLogger("lockstep")
_POLL_SECONDS = 5.0


class ProgressWatch:
    """Resumes, durable checkpoints and goodput of a job's attempts on this node."""

    def __init__(self, job: Path, job_id: str) -> None:
        self._job = job
        self._progress = ProgressEvents(job_id)
        # The thread and the end of an attempt may both poll.
        self._lock = threading.Lock()
        self._finished: set[int] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Polls from a thread during the block."""
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(stop,), name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(_POLL_SECONDS)

    def finish(self, attempt: int, over: float) -> None:
        """Writes the last events of an attempt that was over at ``over``, seconds since 1970."""
        moments = moments_of(read_events(self._job), attempt, over)
        self._poll(attempt, moments, is_last=True)

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(_POLL_SECONDS):
            try:
                attempts = list_attempts(self._job)
                if attempts:
                    attempt = int(attempts[-1].name)
                    self._poll(attempt, moments_of(read_events(self._job), attempt))
            except OSError as error:
                log.warning("progress cannot be reported: %s", error)

    def _poll(self, attempt: int, moments: Moments, *, is_last: bool = False) -> None:
        with self._lock:
            if attempt in self._finished:
                return
            if is_last:
                self._finished.add(attempt)
            pages = pages_of(self._job / str(attempt))
            for event in self._progress.poll(pages, moments, is_last=is_last):
                append_event(self._job, event)
