"""The launcher's eye on its ranks: says as an event that they hang, and fetches what shows why.

A thread of the launcher, which trains nothing, looks at the pages; no rank has to answer.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep_records.attempts import newest_pages
from lockstep_records.events import Event, append_event
from lockstep_records.hangs import Hang, find_hang, ranks_behind
from lockstep_records.page.reader import Page
from lockstep_records.rank_files import write_rank_file
from lockstep_records.switches import read_switches, switches_path
from lockstep_records.worker_socket import FLIGHT_RECORDER, query, socket_path

log = logging.getLogger("lockstep")
FLIGHT_SUFFIX = ".flight.json"
_LOOKS = 8  # in the shortest time that can be a hang
_SLOWEST_SECONDS = 5.0


@contextmanager
def hangs_watched(job: Path, job_id: str, floor_seconds: float) -> Iterator[None]:
    """Watches the ranks of a job on this node while the block runs; 0 watches nobody."""
    if not floor_seconds:
        yield
        return
    over = threading.Event()
    guard = _Guard(job, job_id, floor_seconds)
    thread = threading.Thread(target=guard.watch, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_SLOWEST_SECONDS)


class _Guard:
    """Looks at the pages of the newest attempt and tells of each hang once."""

    def __init__(self, job: Path, job_id: str, floor_seconds: float) -> None:
        self._job, self._job_id, self._floor = job, job_id, floor_seconds
        self._told: tuple[int, ...] = ()

    def watch(self, over: threading.Event) -> None:
        pause = min(_SLOWEST_SECONDS, self._floor / _LOOKS)
        while not over.wait(pause):
            try:
                self.look(time.monotonic_ns())
            except OSError as error:
                log.warning("the ranks' pages cannot be looked at: %s", error)

    def look(self, now_ns: int) -> None:
        """Tells a hang that was not told yet; one that ended may be followed by another."""
        floor = self._floor_now()
        pages = newest_pages(self._job)
        hang = find_hang(pages, now_ns, floor) if floor else None
        if hang is None:
            self._told = ()
        elif not self._told:
            self._told = tuple(rank.rank for rank in hang.ranks)
            self._tell(hang, pages)

    def _floor_now(self) -> float:
        try:
            told = read_switches(switches_path(self._job)).hang_seconds
        except ValueError:  # the ranks say so in their logs
            told = None
        return self._floor if told is None else told

    def _tell(self, hang: Hang, pages: list[Page]) -> None:
        """Flight Recorders are fetched first: who is behind in them names who is missing."""
        dumps = {}
        for page in pages:
            rank = page.identity["rank"]
            data = query(socket_path(page.path), FLIGHT_RECORDER)
            if data is not None:
                dumps[rank] = data
                write_rank_file(page.path, FLIGHT_SUFFIX, data)
        missing = hang.missing or ranks_behind(dumps)
        attempt = max((page.identity["attempt"] for page in pages), default=0)
        fields = {
            "limit_seconds": hang.limit_seconds,
            "ranks": [dataclasses.asdict(rank) for rank in hang.ranks],
            "missing": list(missing),
            "flight_recorders": sorted(dumps),
        }
        event = Event(kind="hang", job_id=self._job_id, attempt=attempt, fields=fields)
        append_event(self._job, event)
        standing = ", ".join(f"rank {rank.rank} in {rank.phase}" for rank in hang.ranks)
        who = ", ".join(map(str, missing)) or "unknown"
        log.warning("job %s hangs: %s; missing: %s", self._job_id, standing, who)
