"""The monitor: what a training loop holds. Its recorder writes; here is what is seldom done.

Phases and steps go straight to the recorder. About once a second it also asks for what ``periodic``
does, and for an inspection of each anomalous step.
"""

import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence

from lockstep.guard import guarded
from lockstep.monitor.anomalies import FLAG, AnomalyDetector
from lockstep.monitor.blocks import MonitorBase
from lockstep.monitor.noop import NoopMonitor
from lockstep.monitor.periodic import EVERY_NS, PeriodicStats, last_error
from lockstep.recorder.native import new_recorder
from lockstep.recorder.phases import DONE, FAILED
from lockstep.recorder.recorder import NEVER
from lockstep.telemetry.traces import Traces
from lockstep_records.hangs import HANG_TIMEOUT_SECONDS
from lockstep_records.page.layout import SLOT
from lockstep_records.page.writer import PageWriter

log = logging.getLogger("lockstep")

_clock = time.monotonic_ns
_NS = 1e-9
_ERRORS = SLOT.word("internal_errors")
_EVERY = 67  # a prime, so that sampled steps are measured no more often than others
_RECORDER_METHODS = (
    "enter_code",
    "enter_phase",
    "first_arrival",
    "wait_begins",
    "wait_ended",
    "step",
)


class LiveMonitor(MonitorBase):
    """Records one rank. Made by ``lockstep.attach``; every method is safe to call at any time."""

    enabled = True

    def __init__(
        self,
        page: PageWriter,
        environment: Mapping[str, str] = os.environ,
        patience_seconds: float = 300.0,
        *,
        hang_timeout_seconds: float = HANG_TIMEOUT_SECONDS,
    ) -> None:
        self._page = page
        self._traces = Traces(page, environment)
        self._periodic = PeriodicStats(page, patience_seconds)
        self._anomalies = AnomalyDetector(page, self._periodic, hang_timeout_seconds)
        self._judge = self._anomalies.judge
        self.recorder = new_recorder(page, self)
        vars(self).update(
            {name: getattr(self.recorder, name) for name in _RECORDER_METHODS}
        )  # a call less
        self._tell_bounds()
        self.recorder.slow_seconds = self._traces.limit_seconds(_clock())
        self.each_step: Callable[[int, int | None], None] = lambda _now, _step: None  # None: over
        me = weakref.ref(self)
        os.register_at_fork(
            after_in_child=lambda: _let_go(me()), after_in_parent=lambda: _forked(me())
        )

    @property
    def next_step(self) -> int:
        """Number that the step which runs now will have."""
        return self.recorder.next_step

    def _switch_phase(self, code: int) -> int:
        return self.recorder.switch_phase(code)

    def tick(self, now_ns: int) -> int:
        """Once a second: does what is seldom done; gives the moment of the next time."""
        self._run_periodic(now_ns)
        return now_ns + EVERY_NS

    @guarded
    def _run_periodic(self, now_ns: int) -> None:
        self._periodic.tick(now_ns)

    def inspect_loss(self, loss: float) -> int:
        """Looks into a loss that is out of bounds; gives the step's flags."""
        self._judge.losses.extend(self.recorder.take_losses())
        flags = self._anomalies.loss(loss)
        self._tell_loss_bounds()
        return flags

    def inspect_norm(self, norm: float) -> int:
        """Looks into a gradient norm that no row can hold; gives the step's flags."""
        return self._anomalies.norm(norm)

    def inspect_step(self, number: int, seconds: Sequence[float]) -> int:
        """Looks into a step that took long, by phase; gives its flags."""
        flags = self._anomalies.step(number, seconds)
        self.recorder.usual_seconds = self._anomalies.usual_seconds
        return flags

    def step_ended(self, now_ns: int, number: int, steps: int, seconds: float) -> None:
        """One of the bounds of the recorder is reached: asks whose it is."""
        recorder = self.recorder
        if seconds > recorder.slow_seconds or not number & 255:
            self._traces.step_ended(now_ns, number, seconds)
        if steps >= recorder.look_at:
            self._look(steps, now_ns)
            self._tell_bounds()
        recorder.slow_seconds = self._traces.limit_seconds(now_ns)
        if number >= recorder.wake_step or now_ns >= recorder.wake_ns:
            self.each_step(now_ns, number)

    def _tell_bounds(self) -> None:
        self._tell_loss_bounds()
        self.recorder.usual_seconds = self._anomalies.usual_seconds

    def _tell_loss_bounds(self) -> None:
        recorder, judge = self.recorder, self._judge
        recorder.loss_floor, recorder.loss_bound = judge.floor, judge.bound
        recorder.lasting_flags = self._anomalies.lasting

    def _look(self, steps: int, now: int) -> None:
        """Seldom: judges anew, and lets our own calls be timed in the step that comes."""
        recorder = self.recorder
        if recorder.measures:
            self._periodic.slots.count("measured_steps")
            self._periodic.slots.add("measured_seconds", (_clock() - now + recorder.own_ns) * _NS)
        else:
            self._judge.losses.extend(recorder.take_losses())
            self._anomalies.look()
        recorder.measures, recorder.own_ns = not recorder.measures and steps % _EVERY == 0, 0
        if recorder.measures:
            recorder.look_at, recorder.flags = steps + 1, recorder.flags | FLAG["measured"]
        else:
            recorder.look_at = min(2 * steps, steps - steps % _EVERY + _EVERY)

    def fail(self, error: Exception) -> None:
        """Counts an error of ours, says it once and turns the monitor off; training goes on."""
        self._page.words[_ERRORS] += 1
        self._page.commit(_clock())
        log.warning("the monitor is off after an error of its own; training goes on: %r", error)
        _let_go(self)

    @guarded
    def close(self, *, failed: bool = False) -> None:
        """Writes what is left and says that the rank is done, or that it failed."""
        error = last_error() if failed else None
        if error is not None:
            self._periodic.tell_error(error)
        self.recorder.due_ns = NEVER
        now = self._switch_phase(FAILED if failed else DONE)
        self.recorder.take_phases()
        self._periodic.close(now)
        self._page.commit(now)
        self._traces.close()
        self.recorder.release()
        self._page.close()
        _let_go(self)


def _let_go(monitor: "LiveMonitor | None") -> None:
    """Turns a monitor into the disabled one for whoever still holds it."""
    if monitor is not None:
        monitor.each_step(0, None)
        monitor.recorder.stop()
        monitor.__class__ = NoopMonitor  # type: ignore[assignment]  # off is an object, not an if


def _forked(monitor: "LiveMonitor | None") -> None:
    """The child leaves the page alone; loader workers fork as well, so it is no warning."""
    if isinstance(monitor, LiveMonitor):
        monitor.tell_fork()
