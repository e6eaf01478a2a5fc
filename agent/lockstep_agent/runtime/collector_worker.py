"""A thread with collectors that share a fate: when a call in it hangs, only they go silent."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
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
from lockstep_catalogue import health

_log = logging.getLogger(__name__)

HUNG = "hung"
_SLACK_SECONDS = 0.05  # a tick that comes a little early still counts


def _nothing(_state: str) -> Iterable[AnyReading]:
    return ()


class CollectorWorker:
    """Runs its collectors one after the other, each in its tier, whenever it is beaten.

    Args:
        name: value of the label ``lane``.
        silence: what to serve instead of all readings while the source is lost or a run hangs,
            given the state.
        stale_seconds: how long a run may take before the worker counts as hung.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        name: str,
        collectors: Iterable[Collector],
        *,
        silence: Callable[[str], Iterable[AnyReading]] = _nothing,
        stale_seconds: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._guards = [Guard(collector) for collector in collectors]
        self._silence, self._stale_seconds, self._clock = silence, stale_seconds, clock
        self._stalled: tuple[Part, ...] = tuple(
            (Reading(health.LANE_STALLED, (name,), stalled),) for stalled in (0, 1)
        )
        self._latest: list[Part] = [()] * len(self._guards)
        self._due_seconds = [clock()] * len(self._guards)
        self._runs: deque[Run] = deque(maxlen=1000)
        self._lost_state = ""
        self._began_seconds: float | None = None
        self._ended_seconds: float | None = None
        self._said_hung = False
        # a queue and a lock wake a thread at a third of what an Event takes
        self._asked, self._busy = SimpleQueue[bool](), threading.Lock()
        self._ends = False
        self._thread: threading.Thread | None = None

    def run_once(self) -> bool:
        """Asks for one run of what is due; False when nothing is, or a run is still under way."""
        if self._ends or not self._is_due() or not self._busy.acquire(blocking=False):
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        self._began_seconds = self._clock()
        self._asked.put(True)
        return True

    def wait(self, timeout_seconds: float) -> bool:
        """Waits until no run is under way; False when time is up first."""
        returned = self._busy.acquire(timeout=max(timeout_seconds, 0.0))
        if returned:
            self._busy.release()
        return returned

    def end(self, timeout_seconds: float) -> bool:
        """Ends the thread; False when its run does not return in time, and it ends when it does."""
        self._ends = True
        self._asked.put(False)
        return self._thread is None or self.wait(timeout_seconds)

    @property
    def is_hung(self) -> bool:
        """Whether the run under way takes longer than a run may."""
        began = self._began_seconds
        return began is not None and self._clock() - began > self._stale_seconds

    @property
    def is_lost(self) -> bool:
        """Whether the source said that it is gone."""
        return bool(self._lost_state)

    @property
    def state(self) -> str:
        """Why it tells nothing, a value of the label ``state`` of a GPU; empty while it tells."""
        return HUNG if self.is_hung else self._lost_state

    def parts(self) -> tuple[Part, ...]:
        """The newest readings of each collector, or what stands for them, and its own health."""
        state = self.state
        self._say(state == HUNG)
        told = (tuple(self._silence(state)),) if state else self._latest
        age = () if self._ended_seconds is None else (self._age(self._ended_seconds),)
        return (*told, self._stalled[state == HUNG], age)

    def take_runs(self) -> Iterator[Run]:
        """The runs since the last call, oldest first."""
        while self._runs:
            yield self._runs.popleft()

    def _age(self, since_seconds: float) -> Reading:
        seconds = max(self._clock() - since_seconds, 0.0)
        return Reading(health.LANE_AGE, (self.name,), seconds)

    def _say(self, hung: bool) -> None:
        if hung and not self._said_hung:
            _log.error("lane=%s state=hung after_seconds=%s", self.name, self._stale_seconds)
        elif self._said_hung and not hung:
            _log.info("lane=%s state=returned", self.name)
        self._said_hung = hung

    def _is_due(self) -> bool:
        """Whether to wake the thread: to do so for nothing costs more than to ask."""
        return self._clock() >= min(self._due_seconds, default=0.0) - _SLACK_SECONDS

    def _run(self) -> None:
        while self._asked.get():
            self._run_what_is_due()
            self._ended_seconds = self._clock()
            self._began_seconds = None
            self._busy.release()

    def _run_what_is_due(self) -> None:
        now = self._clock()
        try:
            for index, guard in enumerate(self._guards):
                if now >= self._due_seconds[index] - _SLACK_SECONDS:
                    run = guard.run()
                    self._latest[index] = run.readings
                    self._runs.append(run)
                    self._due_seconds[index] = now + guard.tier.value
            self._lose("", "")
        except SourceLostError as error:
            self._latest = [()] * len(self._guards)
            self._due_seconds = [now] * len(self._guards)
            self._lose(error.state, str(error))

    def _lose(self, state: str, text: str) -> None:
        if state and state != self._lost_state:
            _log.error("lane=%s state=%s error=%r", self.name, state, text)
        elif self._lost_state and not state:
            _log.info("lane=%s state=answers", self.name)
        self._lost_state = state
