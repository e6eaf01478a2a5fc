"""A thread with collectors that read one source: when a call hangs, only they go silent."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import SimpleQueue

from lockstep_agent.collector import (
    AnyReading,
    Collector,
    Guard,
    Part,
    Reading,
    Run,
    SourceLostError,
)
from lockstep_catalogue import agent

_log = logging.getLogger(__name__)

HUNG = "hung"
_SLACK_SECONDS = 0.05  # a tick may be a little early


class CollectorWorker:
    """Runs its collectors one after the other, each in its tier, at each ``run_once``.

    Args:
        name: value of the label ``worker``.
        collectors: in the order in which they run.
        silence: readings to serve instead of all others while the source is lost or a run hangs,
            given the state.
        stale_seconds: how long a run may take before the worker counts as hung, less the time in
            which its thread waited for a processor, and in which nobody took its readings.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        name: str,
        collectors: Iterable[Collector],
        *,
        silence: Callable[[str], Iterable[AnyReading]] = lambda _state: (),
        stale_seconds: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._guards = [Guard(collector) for collector in collectors]
        self._silence, self._stale_seconds, self._clock = silence, stale_seconds, clock
        self._stalled: tuple[Part, ...] = tuple(
            (Reading(agent.WORKER_STALLED, (name,), stalled),) for stalled in (0, 1)
        )
        self._latest: list[Part] = [()] * len(self._guards)
        self._due_seconds = [clock()] * len(self._guards)
        # Bounded, for a worker whose runs nobody takes.
        self._runs: deque[Run] = deque(maxlen=1000)
        self._lost_state = ""
        self._run_start_seconds: float | None = None
        self._watched_seconds = self._queued_seconds = self._excused_seconds = 0.0
        self._exceeds = self._has_logged_hang = False
        # A queue and a lock wake a thread in a third of the time that an Event takes.
        self._requests, self._busy = SimpleQueue[bool](), threading.Lock()
        self._is_ending = False
        self._thread: threading.Thread | None = None
        self._schedstat = -1

    def run_once(self) -> bool:
        """Starts one run of what is due; False when nothing is due or a run is still under way."""
        if self._is_ending or not self._is_due() or not self._busy.acquire(blocking=False):
            return False
        if self._thread is None:
            # A daemon: a call that never returns must not keep the agent from ending.
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        self._queued_seconds, self._excused_seconds = self._read_queued(), 0.0
        self._exceeds = False
        self._run_start_seconds = self._watched_seconds = self._clock()
        self._requests.put(True)
        return True

    def wait(self, timeout_seconds: float) -> bool:
        """Waits until no run is under way; False when time is up first."""
        returned = self._busy.acquire(timeout=max(timeout_seconds, 0.0))
        if returned:
            self._busy.release()
        return returned

    def end(self, timeout_seconds: float) -> bool:
        """Ends the thread; False when its run is not over in time: then it ends after that run."""
        self._is_ending = True
        self._requests.put(False)
        return self._thread is None or self.wait(timeout_seconds)

    def make_due(self, collector: str) -> None:
        """Has one of its collectors run with the next tick."""
        for index, guard in enumerate(self._guards):
            if guard.name == collector:
                self._due_seconds[index] = 0.0

    @property
    def is_hung(self) -> bool:
        """Whether the run under way exceeded the time that a run may take at the last look."""
        return self._exceeds and self._run_start_seconds is not None

    @property
    def is_lost(self) -> bool:
        """Whether the source reported that it is gone."""
        return bool(self._lost_state)

    @property
    def state(self) -> str:
        """Why its readings are withheld, a value of the label ``state``; empty while served."""
        return HUNG if self.is_hung else self._lost_state

    def parts(self) -> tuple[Part, ...]:
        """The newest readings of each collector, or those of ``silence``, and the worker's own."""
        self._watch()
        state = self.state
        self._log_hang(state == HUNG)
        parts = (tuple(self._silence(state)),) if state else self._latest
        return (*parts, self._stalled[state == HUNG])

    def take_runs(self) -> Iterator[Run]:
        """The runs since the last call, oldest first."""
        while self._runs:
            yield self._runs.popleft()

    def _watch(self) -> None:
        """Judges the run under way: an agent that gets no processor must not blame the source."""
        now, start = self._clock(), self._run_start_seconds
        if start is None:
            return
        queued, unwatched = self._read_queued(), now - self._watched_seconds - self._stale_seconds
        self._excused_seconds += max(queued - self._queued_seconds, unwatched, 0.0)
        self._watched_seconds, self._queued_seconds = now, queued
        self._exceeds = now - start - self._excused_seconds > self._stale_seconds

    def _read_queued(self) -> float:
        """Seconds that its thread has waited for a processor; 0 where the kernel does not tell."""
        with suppress(OSError, ValueError, IndexError):
            return int(os.pread(self._schedstat, 64, 0).split()[1]) / 1e9
        return 0.0

    def _log_hang(self, hung: bool) -> None:
        if hung and not self._has_logged_hang:
            _log.error("worker=%s state=hung after_seconds=%s", self.name, self._stale_seconds)
        elif self._has_logged_hang and not hung:
            _log.info("worker=%s state=returned", self.name)
        self._has_logged_hang = hung

    def _is_due(self) -> bool:
        """Whether a collector is due; waking the thread for nothing would cost more than this."""
        return self._clock() >= min(self._due_seconds, default=0.0) - _SLACK_SECONDS

    def _run(self) -> None:
        with suppress(OSError):
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        while self._requests.get():
            self._run_due_collectors()
            self._run_start_seconds = None
            self._busy.release()
        ended, self._schedstat = self._schedstat, -1
        with suppress(OSError):
            os.close(ended)

    def _run_due_collectors(self) -> None:
        now = self._clock()
        try:
            for index, guard in enumerate(self._guards):
                if now >= self._due_seconds[index] - _SLACK_SECONDS:
                    run = guard.run()
                    self._latest[index] = run.readings
                    self._runs.append(run)
                    self._due_seconds[index] = now + guard.tier.value
            self._set_lost_state("", "")
        except SourceLostError as error:
            # All collectors are due at once: the source may be back with the next tick.
            self._latest = [()] * len(self._guards)
            self._due_seconds = [now] * len(self._guards)
            self._set_lost_state(error.state, str(error))

    def _set_lost_state(self, state: str, text: str) -> None:
        if state and state != self._lost_state:
            _log.error("worker=%s state=%s error=%r", self.name, state, text)
        elif self._lost_state and not state:
            _log.info("worker=%s state=answers", self.name)
        self._lost_state = state
