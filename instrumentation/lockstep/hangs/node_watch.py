"""Hang watch of the launcher: writes an event when ranks hang, and fetches their Flight Recorders.

A thread of the launcher, which trains nothing, reads the pages; no rank has to answer.
"""

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_outcomes.progress import hangs
from lockstep_outcomes.progress.hangs import is_count
from lockstep_outcomes.progress.missing import Launched
from lockstep_outcomes.progress.progress_events import hang_fields, hangs_of, standstill_words
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import newest_pages
from lockstep_records.files.rank_files import write_rank_file
from lockstep_records.files.worker_socket import query_flight_recorder, socket_path
from lockstep_records.page.reader import Page
from lockstep_records.text.printable import printable

_MAX_NAME = 64


def launched_by_dump(data: bytes) -> dict[str, Launched]:
    """Collectives of each group by a rank's dump as JSON; empty where it holds none or is none.

    Groups go by their names, which all ranks share; numbers of groups are each rank's own.
    """
    try:
        entries = json.loads(data)["entries"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    found: dict[str, dict[int, _Call]] = {}
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            continue
        group, number = _group_of(entry), _number_of(entry)
        if group and number is not None:
            # On gloo the state of a completed collective stays "scheduled".
            is_open = entry.get("state") != "completed" and not entry.get("retired")
            call = _Call(_operation_of(entry), str(entry.get("input_sizes")), is_open)
            found.setdefault(group, {})[number] = call
    return {group: _launched(by_number) for group, by_number in found.items()}


class _Call(NamedTuple):
    operation: str
    sizes: str
    is_open: bool


def _launched(by_number: dict[int, _Call]) -> Launched:
    last = max(by_number)
    oldest = min((number for number, call in by_number.items() if call.is_open), default=None)
    pair = None if oldest is None else (oldest, by_number[oldest].operation)
    stands = by_number[oldest or last]
    times = sum(call[:2] == stands[:2] for call in by_number.values()) - 1
    return Launched(last, by_number[last].operation, pair, times)


def _group_of(entry: dict[str, Any]) -> str:
    group = entry.get("process_group")
    return printable(str(group[0]))[:_MAX_NAME] if isinstance(group, list) and group else ""


def _number_of(entry: dict[str, Any]) -> int | None:
    """The number of a collective in its group; None of sends and receives, which pairs count."""
    number = entry.get("collective_seq_id")
    return number if is_count(number) and number and not entry.get("is_p2p") else None


def _operation_of(entry: dict[str, Any]) -> str:
    return printable(str(entry.get("profiling_name", "")).rpartition(":")[2])[:_MAX_NAME]


log = logging.getLogger("lockstep")
FLIGHT_SUFFIX = ".flight.json"
# A hang is noticed an eighth of the time-out late at most, and after 5 s where that is longer.
_POLLS_PER_TIMEOUT = 8
_MAX_POLL_SECONDS = 5.0


@contextmanager
def watch_for_hangs(job: Path, job_id: str, timeouts: hangs.HangTimeouts) -> Iterator[None]:
    """Watches the ranks of a job on this node during the block; a time-out of 0 watches none."""
    if timeouts.is_off:
        yield
        return
    stop = threading.Event()
    watch = _NodeWatch(job, job_id, timeouts)
    thread = threading.Thread(target=watch.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_MAX_POLL_SECONDS)


class _NodeWatch:
    """Reads the pages of the newest attempt and reports each hang once."""

    def __init__(self, job: Path, job_id: str, timeouts: hangs.HangTimeouts) -> None:
        self._job, self._job_id, self._timeouts = job, job_id, timeouts
        self._reported: Event | None = None

    def run(self, stop: threading.Event) -> None:
        interval_seconds = min(_MAX_POLL_SECONDS, self._timeouts.step_seconds / _POLLS_PER_TIMEOUT)
        while not stop.wait(interval_seconds):
            try:
                self.poll(time.monotonic_ns())
            except OSError as error:
                log.warning("the ranks' pages cannot be read: %s", error)

    def poll(self, now_ns: int) -> None:
        """Reports a hang when it begins and when it ends; the next one is reported again."""
        pages = newest_pages(self._job)
        hang = hangs.find_hang(pages, now_ns, hangs.switched_timeouts(self._job, self._timeouts))
        if hang is not None and self._reported is None:
            self._reported = self._report(hang, pages)
        elif hang is None and self._reported is not None:
            self._report_end(self._reported, pages)
            self._reported = None

    def _report_end(self, reported: Event, pages: list[Page]) -> None:
        """Says that the ranks move again; those that ended in the hang do not."""
        (hang,) = hangs_of([reported], reported.attempt)
        moving = [
            page
            for page in pages
            if page.identity["attempt"] == reported.attempt and page.phase not in ENDED_PHASES
        ]
        if not moving:
            return
        # Progress is later than the hang's end by what the poll is late.
        moved_ns = min(page.progress_ns for page in moving)
        moment = min(time.time(), max(hang.begin, moving[0].wall_seconds(moved_ns)))
        fields = {"missing": list(hang.missing), "seconds": moment - hang.begin}
        append_event(
            self._job,
            Event(
                kind="hang_ended",
                job_id=self._job_id,
                attempt=reported.attempt,
                fields=fields,
                time=moment,
            ),
        )
        log.warning(
            "job %s moves again after %.0f s: %s",
            self._job_id,
            moment - hang.begin,
            standstill_words(hang),
        )

    def _report(self, hang: hangs.Hang, pages: list[Page]) -> Event:
        # First the Flight Recorders: they say which collectives each rank has launched.
        launched = {}
        for page in pages:
            data = query_flight_recorder(socket_path(page.path))
            if data is not None:
                write_rank_file(page.path, FLIGHT_SUFFIX, data)
                launched[page.identity["rank"]] = launched_by_dump(data)
        attempt = max((page.identity["attempt"] for page in pages), default=0)
        recorded = sorted(rank for rank, groups in launched.items() if groups)
        fields = hang_fields(hang.with_launched(launched)) | {"flight_recorders": recorded}
        event = Event(kind="hang", job_id=self._job_id, attempt=attempt, fields=fields)
        append_event(self._job, event)
        (record,) = hangs_of([event], attempt)
        log.warning("job %s hangs: %s", self._job_id, standstill_words(record))
        return event
