"""The monitor: what a training loop holds. Its pen writes; here is what is seldom done.

A mark and a step go straight to the pen. About once a second a mark also does what ``seldom`` says,
and steps that are unusual are looked into.
"""

import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence

from lockstep.guard import guarded
from lockstep.monitor.anomalies import FLAG, Unusual
from lockstep.monitor.blocks import Spans
from lockstep.monitor.noop import Disabled
from lockstep.monitor.periodic import EVERY_NS, Seldom, last_error
from lockstep.recorder.native import new_pen
from lockstep.recorder.phases import DONE, FAILED
from lockstep.recorder.recorder import NEVER
from lockstep.telemetry.traces import Traces
from lockstep_records.page.layout import SLOT
from lockstep_records.page.writer import PageWriter

log = logging.getLogger("lockstep")

_clock = time.monotonic_ns
_NS = 1e-9
_ERRORS = SLOT.word("internal_errors")
_EVERY = 67  # a prime, so that sampled steps are measured no more often than others
_PEN = ("enter", "mark", "first_arrival", "wait_begins", "wait_ended", "step")


class Monitor(Spans):
    """Records one rank. Made by ``lockstep.attach``; every method is safe to call at any time."""

    enabled = True

    def __init__(
        self,
        page: PageWriter,
        environment: Mapping[str, str] = os.environ,
        patience_seconds: float = 300.0,
    ) -> None:
        self._page = page
        self._traces = Traces(page, environment)
        self._seldom = Seldom(page, patience_seconds)
        self._unusual = Unusual(page, self._seldom)
        self._judge = self._unusual.judge
        self.pen = new_pen(page, self)
        vars(self).update({name: getattr(self.pen, name) for name in _PEN})  # a call less
        self._tell_bounds()
        self.pen.slow_seconds = self._traces.limit_seconds(_clock())
        self.each_step: Callable[[int, int | None], None] = lambda _now, _step: None  # None: over
        me = weakref.ref(self)
        os.register_at_fork(
            after_in_child=lambda: _let_go(me()), after_in_parent=lambda: _forked(me())
        )

    @property
    def next_step(self) -> int:
        """Number that the step which runs now will have."""
        return self.pen.next_step

    def _cut(self, code: int) -> int:
        return self.pen.cut(code)

    def tick(self, now_ns: int) -> int:
        """Once a second: does what is seldom done; gives the moment of the next time."""
        self._do_seldom(now_ns)
        return now_ns + EVERY_NS

    @guarded
    def _do_seldom(self, now_ns: int) -> None:
        self._seldom.tick(now_ns)

    def unusual_loss(self, loss: float) -> int:
        """Looks into a loss that is out of bounds; gives the step's flags."""
        self._judge.losses.extend(self.pen.take_losses())
        flags = self._unusual.loss(loss)
        self._tell_loss_bounds()
        return flags

    def unusual_norm(self, norm: float) -> int:
        """Looks into a gradient norm that no row can hold; gives the step's flags."""
        return self._unusual.norm(norm)

    def unusual_step(self, number: int, seconds: Sequence[float]) -> int:
        """Looks into a step that took long, by phase; gives its flags."""
        flags = self._unusual.step(number, seconds)
        self.pen.usual_seconds = self._unusual.usual_seconds
        return flags

    def step_ended(self, now_ns: int, number: int, steps: int, seconds: float) -> None:
        """One of the bounds of the pen is reached: asks whose it is."""
        pen = self.pen
        if seconds > pen.slow_seconds or not number & 255:
            self._traces.step_ended(now_ns, number, seconds)
        if steps >= pen.look_at:
            self._look(steps, now_ns)
            self._tell_bounds()
        pen.slow_seconds = self._traces.limit_seconds(now_ns)
        if number >= pen.wake_step or now_ns >= pen.wake_ns:
            self.each_step(now_ns, number)

    def _tell_bounds(self) -> None:
        self._tell_loss_bounds()
        self.pen.usual_seconds = self._unusual.usual_seconds

    def _tell_loss_bounds(self) -> None:
        pen, judge = self.pen, self._judge
        pen.loss_floor, pen.loss_bound = judge.floor, judge.bound
        pen.lasting_flags = self._unusual.lasting

    def _look(self, steps: int, now: int) -> None:
        """Seldom: judges anew, and lets our own calls be timed in the step that comes."""
        pen = self.pen
        if pen.measures:
            self._seldom.slots.count("measured_steps")
            self._seldom.slots.add("measured_seconds", (_clock() - now + pen.own_ns) * _NS)
        else:
            self._judge.losses.extend(pen.take_losses())
            self._unusual.look()
        pen.measures, pen.own_ns = not pen.measures and steps % _EVERY == 0, 0
        if pen.measures:
            pen.look_at, pen.flags = steps + 1, pen.flags | FLAG["measured"]
        else:
            pen.look_at = min(2 * steps, steps - steps % _EVERY + _EVERY)

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
            self._seldom.tell_error(error)
        self.pen.due_ns = NEVER
        now = self._cut(FAILED if failed else DONE)
        self.pen.take_phases()
        self._seldom.close(now)
        self._page.commit(now)
        self._traces.close()
        self.pen.release()
        self._page.close()
        _let_go(self)


def _let_go(monitor: "Monitor | None") -> None:
    """Turns a monitor into the disabled one for whoever still holds it."""
    if monitor is not None:
        monitor.each_step(0, None)
        monitor.pen.stop()
        monitor.__class__ = Disabled  # type: ignore[assignment]  # off is an object, not an if


def _forked(monitor: "Monitor | None") -> None:
    """The child leaves the page alone; loader workers fork as well, so it is no warning."""
    if isinstance(monitor, Monitor):
        monitor.tell_fork()
