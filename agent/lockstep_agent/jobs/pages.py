"""The pages of one job on this node: every attempt's, read anew each tick, none forgotten."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lockstep_agent.jobs.slow_steps import SlowSteps
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_records.events import FILE_NAME, finish_time, read_events
from lockstep_records.jobs import list_attempts, list_pages
from lockstep_records.page.reader import Page, PageError, PageReader, Values

_SILENT_LAUNCHER_SECONDS = 900.0


class JobPages:
    """What is known of a job from its folder.

    A page that has gone or can no longer be read counts with its last good state, so that the sums
    over the pages never fall.

    Args:
        linger_seconds: how long the job stays after its end.
        is_running: whether the process of a page still runs.

    Attributes:
        running: pages whose process still runs and has not said that it is through.
        unreadable: reason by page, for those that cannot be read now.
        slow_steps: what the ranks have spooled of them.
        has_left: the job ended so long ago that nothing is to be said of it.
    """

    def __init__(
        self, folder: Path, linger_seconds: float, is_running: Callable[[Page], bool]
    ) -> None:
        self.folder = folder
        self._linger_seconds, self._is_running = linger_seconds, is_running
        self._pages: dict[Path, Page] = {}
        self._readers: dict[Path, PageReader] = {}
        self._listed: list[Path] = []
        self._events_seen: tuple[int, int] | None = None
        self._finished_seconds: float | None = None
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

    def refresh(self, now_seconds: float) -> None:
        """Reads what has changed and decides whether the job has left.

        Args:
            now_seconds: wall clock.
        """
        try:
            self._read_events()
            paths = [path for attempt in list_attempts(self.folder) for path in list_pages(attempt)]
        except OSError:
            paths = []  # the folder is being removed
        if self.has_left and self._is_over(now_seconds) and paths == self._listed:
            return
        self._listed = paths
        self.unreadable = {}
        for path in paths:
            self._read(path)
        self.running = frozenset(page.path for page in self.pages if self._runs(page))
        self.has_left = self._is_over(now_seconds)

    def _read(self, path: Path) -> None:
        known = self._pages.get(path)
        try:
            page = self._readers.setdefault(path, PageReader(path)).read()
        except PageError as error:
            self.unreadable[path] = error.reason
            return
        if known and _same_life(known, page) and _is_behind(page, known):
            page = replace(
                page,
                state=max(page.state, known.state, key=_sequence),
                periodic=max(page.periodic, known.periodic, key=_sequence),
            )
        self._pages[path] = page

    def _runs(self, page: Page) -> bool:
        return page.phase not in ENDED_PHASES and self._is_running(page)

    def _read_events(self) -> None:
        path = self.folder / FILE_NAME
        if not path.is_file():
            return
        status = path.stat()
        seen = (status.st_mtime_ns, status.st_size)
        if seen == self._events_seen:
            return
        self._events_seen = seen
        self._finished_seconds = finish_time(read_events(self.folder))

    def _is_over(self, now_seconds: float) -> bool:
        """Whether the job ended long enough ago, by its launcher's word or by its silent ranks."""
        if self._finished_seconds is not None:
            return now_seconds >= self._finished_seconds + self._linger_seconds
        if self.running or not self._pages:
            self._was_running = self._was_running or bool(self.running)
            self._silent_since_seconds = None
            return False
        if self._silent_since_seconds is None:
            last = max(page.progress_wall_seconds for page in self.pages)
            self._silent_since_seconds = now_seconds if self._was_running else last
        patience = self._linger_seconds
        if self._events_seen is not None:
            patience = max(patience, _SILENT_LAUNCHER_SECONDS)
        return now_seconds >= self._silent_since_seconds + patience


def _sequence(values: Values) -> int:
    return int(values["sequence"])


def _is_behind(page: Page, known: Page) -> bool:
    """Whether a slot was torn, so that the other, the older one, was read."""
    return _sequence(page.state) < _sequence(known.state) or _sequence(page.periodic) < _sequence(
        known.periodic
    )


def _same_life(one: Page, other: Page) -> bool:
    return bool(one.identity["start_wall_ns"] == other.identity["start_wall_ns"])
