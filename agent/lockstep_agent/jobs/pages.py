"""The pages of one job on this node: of every attempt, the last good state and the slow steps."""

import os
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from lockstep_agent.collector import Exemplar
from lockstep_agent.jobs.job_snapshot import MAX_PAGES, JobSnapshot
from lockstep_catalogue.training import STEP_SECONDS
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_records.events.event import FILE_NAME, Event, finish_time, parse_lines
from lockstep_records.file_access.foreign_files import open_foreign
from lockstep_records.files.spans import Span, read_spans, spool_path
from lockstep_records.page.reader import Page, PageError, Values

_TAIL_BYTES = 256 << 10
MAX_READS = 16
"""Changed spools of one user that are read in one tick."""
_MAX_SECONDS = 1e9
_Signature = tuple[int, int]
"""Time of the last change and size of a file."""
_Spool = tuple[_Signature, dict[int, Span]]
# A launcher that is killed writes no end of the job; one that is alive may restart the ranks.
_SILENT_LAUNCHER_SECONDS = 900.0
_MAX_PAGES = 2 * MAX_PAGES


def last_events(path: Path, owner: int) -> list[Event]:
    """Events at the end of a job's file, in the order of writing; its end is among them.

    The file must have the owner of the job's folder.

    Raises:
        OSError: the file cannot be read.
    """
    with open_foreign(path, owner=owner) as descriptor:
        begin = max(os.fstat(descriptor).st_size - _TAIL_BYTES, 0)
        lines = os.pread(descriptor, _TAIL_BYTES, begin).decode(errors="replace").splitlines()
    return parse_lines(lines)


class SlowSteps:
    """The newest slow step of each bucket, over the ranks of a job on this node.

    A spool is read again only when it has changed; of each the newest step a bucket is remembered.

    Attributes:
        num_read: spools that the last call has read.
    """

    def __init__(self) -> None:
        self._spools: dict[Path, _Spool] = {}
        self.num_read = 0

    def exemplars(
        self, pages: Iterable[Page], max_reads: int = MAX_READS
    ) -> tuple[Exemplar | None, ...]:
        """One exemplar or None a bucket, the last beyond all bounds; other spools wait."""
        self.num_read = 0
        newest: list[Exemplar | None] = [None] * (len(STEP_SECONDS.buckets) + 1)
        spools, self._spools = self._spools, {}
        for page in pages:
            path = spool_path(page.path)
            spool = self._refresh(path, spools.get(path), max_reads)
            if spool is None:
                continue
            self._spools[path] = spool
            for bucket, span in spool[1].items():
                before = newest[bucket]
                if before is None or before.wall_seconds < span.end_ns / 1e9:
                    newest[bucket] = _exemplar(span, page.identity["rank"])
        return tuple(newest)

    def _refresh(self, path: Path, spool: _Spool | None, max_reads: int) -> _Spool | None:
        try:
            status = path.lstat()
        except OSError:
            return None
        signature = (status.st_mtime_ns, status.st_size)
        # A spool holds up to 256 KiB, so it is read again only when it has changed.
        if (spool and spool[0] == signature) or self.num_read >= max_reads:
            return spool
        self.num_read += 1
        by_bucket: dict[int, Span] = {}
        for span in read_spans(path):
            if span.name == "slow_step" and _is_timed(span):
                bucket = bisect_left(STEP_SECONDS.buckets, span.attributes["seconds"])
                if bucket not in by_bucket or by_bucket[bucket].end_ns < span.end_ns:
                    by_bucket[bucket] = span
        return signature, by_bucket


def _is_timed(span: Span) -> bool:
    """Whether the step's duration is known; a user's own program may write anything."""
    return bool(0 < span.attributes.get("seconds", 0.0) <= _MAX_SECONDS)


def _exemplar(span: Span, rank: int) -> Exemplar:
    labels = {"trace_id": span.trace_id, "span_id": span.span_id, "rank": str(rank)}
    return Exemplar(labels=labels, value=span.attributes["seconds"], wall_seconds=span.end_ns / 1e9)


class JobPages:
    """The state of one job, from tick to tick; its series stay ``linger_seconds`` after its end.

    A page that has gone or can no longer be read counts with its last good state, so that the sums
    over the pages never fall.

    Attributes:
        running: paths of the pages whose process still runs and has not reported its end.
        unreadable: reason by path, for the pages that cannot be read now.
        slow_steps: slow steps that the ranks have spooled.
        has_left: whether the job ended so long ago that its series are no longer served.
    """

    def __init__(self, linger_seconds: float) -> None:
        self._linger_seconds = linger_seconds
        self._pages: dict[Path, Page] = {}
        self._listed: list[Path] = []
        # By folder: what its file of events was when it was read, when it says the job ended, and
        # how many ranks failed.
        self._events: dict[Path, tuple[_Signature, float | None, int]] = {}
        self._silent_since_seconds: float | None = None
        self._was_running = False
        self.running: frozenset[Path] = frozenset()
        self.unreadable: dict[Path, str] = {}
        self.has_left = False
        self.slow_steps = SlowSteps()

    @property
    def pages(self) -> list[Page]:
        """The pages of all attempts, each in its newest good state."""
        return list(self._pages.values())

    @property
    def num_failed(self) -> int:
        """Ranks that failed in the newest attempt, by the launchers' word."""
        return sum(failed for _, _, failed in self._events.values())

    def refresh(self, job: JobSnapshot, now_seconds: float) -> None:
        """Takes in what has changed and decides whether the job has left."""
        self._events = {path: each for path, each in self._events.items() if path in job.folders}
        for folder in job.folders:
            self._read_events(folder, job.owner)
        paths = job.paths
        # The pages of a job that has left are not read again, unless an attempt was added.
        if self.has_left and self._is_over(now_seconds) and paths == self._listed:
            return
        self._listed = paths
        self.unreadable = {}
        for path in paths:
            self._update(job, path)
        if len(self._pages) > _MAX_PAGES:  # removed jobs stay until the bound
            self._pages = {path: self._pages[path] for path in paths if path in self._pages}
        begun = (page for page in self.pages if page.phase not in ENDED_PHASES)
        self.running = frozenset(page.path for page in begun if job.is_running(page))
        self.has_left = self._is_over(now_seconds)

    def _update(self, job: JobSnapshot, path: Path) -> None:
        before = self._pages.get(path)
        try:
            page = job.read(path)
        except PageError as error:
            self.unreadable[path] = error.reason
            return
        if before and _same_life(before, page) and _is_behind(page, before):
            page = replace(
                page,
                state=max(page.state, before.state, key=_sequence),
                periodic=max(page.periodic, before.periodic, key=_sequence),
            )
        self._pages[path] = page

    def _read_events(self, folder: Path, owner: int) -> None:
        path = folder / FILE_NAME
        try:
            status = path.lstat()
            signature = (status.st_mtime_ns, status.st_size)
            if signature != self._events.get(folder, (None,))[0]:
                events = last_events(path, owner)
                self._events[folder] = (signature, finish_time(events), _num_failed(events))
        except OSError:
            return  # no file yet, or the folder is being removed

    def _is_over(self, now_seconds: float) -> bool:
        """Whether the job ended long enough ago, by its launcher's event or by its silent ranks."""
        ends = [end for _, end, _ in self._events.values() if end is not None]
        if ends and len(ends) == len(self._events):  # of every pod here that has a launcher
            return now_seconds >= max(ends) + self._linger_seconds
        if self.running or not self._pages:
            self._was_running = self._was_running or bool(self.running)
            self._silent_since_seconds = None
            return False
        if self._silent_since_seconds is None:
            # An agent that was started after the end of the ranks counts from their last heartbeat.
            last = max(page.progress_wall_seconds for page in self.pages)
            self._silent_since_seconds = now_seconds if self._was_running else last
        wait_seconds = self._linger_seconds
        if self._events:
            wait_seconds = max(wait_seconds, _SILENT_LAUNCHER_SECONDS)
        return now_seconds >= self._silent_since_seconds + wait_seconds


def _num_failed(events: Iterable[Event]) -> int:
    """Ranks that ended with an error in the newest attempt; 0 where it is not called failed."""
    num_failed, is_failed = 0, False
    for event in events:
        if event.kind == "attempt_started":
            num_failed, is_failed = 0, False
        elif event.kind == "rank_ended":
            num_failed += event.fields.get("exit_code") != 0
        elif event.kind == "attempt_ended":
            is_failed = event.fields.get("outcome") == "failed"
    return num_failed if is_failed else 0


def _sequence(values: Values) -> int:
    return int(values["sequence"])


def _is_behind(page: Page, before: Page) -> bool:
    """Whether a slot was torn, so that the other, the older one, was read."""
    return _sequence(page.state) < _sequence(before.state) or _sequence(page.periodic) < _sequence(
        before.periodic
    )


def _same_life(page: Page, other: Page) -> bool:
    """Whether the same process wrote both: a new one may create its page under the same name."""
    return bool(page.identity["start_wall_ns"] == other.identity["start_wall_ns"])
