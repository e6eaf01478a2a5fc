"""Asks how far a rank has come while it stands, from a thread that its loop does not see.

A thread of Python runs while the loop waits for the device or in a collective, which give up the
interpreter's lock. It asks nothing before half of the time-out has passed without a heartbeat, so
that no graph is being captured, which a question of another thread would end.
"""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lockstep.guard import Parts
from lockstep_catalogue.vocabulary import ENDED_PHASES
from lockstep_outcomes.progress.missing import Device, Launched
from lockstep_outcomes.progress.rank_progress import RankProgress, write_progress
from lockstep_records.page.reader import PageError, PageReader

_POLLS_PER_LIMIT = 8
_MAX_POLL_SECONDS = 10.0
_MAX_GROUPS = 64
_DEVICE_WORDS: dict[bool | None, Device | None] = {True: "pending", False: "passed", None: None}


class ProgressWatch:
    """A thread that writes a rank's progress beside its page once the rank stands.

    Args:
        limit_seconds: the time-out of a hang, as it is now; 0 asks nothing.
        is_device_busy: whether the loop's stream has work before it; None where unknown.
        parts: of the monitor; an error ends the watch.
    """

    def __init__(
        self,
        page: Path,
        limit_seconds: Callable[[], float],
        is_device_busy: Callable[[], bool | None],
        parts: Parts,
    ) -> None:
        self._reader, self._limit_seconds, self._parts = PageReader(page), limit_seconds, parts
        self._is_device_busy = is_device_busy
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread with its next poll."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_seconds()):
            if self._parts.run("hang_watch", self.poll, time.monotonic_ns()) is None:
                return

    def _interval_seconds(self) -> float:
        limit = self._limit_seconds() or _POLLS_PER_LIMIT * _MAX_POLL_SECONDS
        return min(_MAX_POLL_SECONDS, limit / _POLLS_PER_LIMIT)

    def poll(self, now_ns: int) -> bool:
        """Writes the progress of a rank that stands; whether it does."""
        limit = self._limit_seconds()
        try:
            page = self._reader.read()
        except PageError:  # somebody deleted it under the run
            return False
        idle_seconds = (now_ns - page.progress_ns) / 1e9
        if not limit or idle_seconds < limit / 2 or page.phase in ENDED_PHASES:
            return False
        device = _DEVICE_WORDS[self._is_device_busy()]
        progress = RankProgress(device=device, launched=_ask_groups())
        write_progress(page, progress)
        return True


def _ask_groups() -> dict[str, Launched]:
    """How many collectives this process has launched in each of its groups."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    names = getattr(getattr(distributed, "_world", None), "pg_names", {})
    launched = {}
    for group, name in list(names.items())[:_MAX_GROUPS]:
        try:
            number = int(group._get_sequence_number_for_group())  # noqa: SLF001  # torch has no other
        except (AttributeError, RuntimeError):  # a backend that counts none
            continue
        launched[str(name)] = Launched(number)
    return launched
