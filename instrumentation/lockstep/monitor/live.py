"""The monitor that records: what a training loop holds while its rank has a page.

Phases and steps go straight to the recorder. Off, suspended and forked are objects that take the
recorder's place, so that no call asks which it is.
"""

import logging
import os
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from lockstep.guard import NoParts, Parts, guarded, part_of
from lockstep.monitor.anomalies import AnomalyDetector
from lockstep.monitor.checkpoint_handles import (
    Restoring,
    Saved,
    Saving,
    count_checkpoint_seconds,
    write_restored,
)
from lockstep.monitor.first_steps import FirstSteps
from lockstep.monitor.periodic import PeriodicStats, last_error
from lockstep.monitor.protocol import NoopMonitor
from lockstep.monitor.step_callbacks import StepCallbacks, StepObserver
from lockstep.recorder.batches import TimedLoader, count_batch
from lockstep.recorder.interface import NEVER, Recorder, StepRecorder, SuspendedRecorder
from lockstep.recorder.phases import DATA, DONE, FAILED, FLAG, code_of
from lockstep.telemetry.traces import Traces
from lockstep_outcomes.progress.hangs import HANG_TIMEOUT_SECONDS
from lockstep_records.page.layout import FINGERPRINTS, PERIODIC, SLOT
from lockstep_records.page.writer import PageWriter

_FINGERPRINTS = PERIODIC.word("fingerprints")
_STEPS = SLOT.word("steps")


class PageReports:
    """Keeps reports in the page and its spool of spans; each is a call of a part."""

    def __init__(
        self,
        page: PageWriter,
        periodic: PeriodicStats,
        traces: Traces | None,
        callbacks: StepCallbacks,
        parts: Parts,
    ) -> None:
        self._page, self._periodic, self._traces = page, periodic, traces
        self._callbacks, self.parts = callbacks, parts
        self._num_rounds = self._num_independent = self._staleness_sum = self._synced_steps = 0

    @part_of("forks")
    def fork(self) -> None:
        """Counts a fork of this process; loaders fork too, so it does not warn."""
        self._periodic.report_trouble(
            "fork", "the process forked: the child writes no page", level=logging.INFO
        )

    @part_of("fingerprints")
    def shape_change(self) -> None:
        """Counts a model whose parameters are no longer those of ``attach``."""
        self._periodic.report_trouble(
            "shape_change", "the model's parameters have changed in number or size"
        )

    @part_of("fingerprints")
    def fingerprint(self, step: int, parameters: int, gradients: int) -> None:
        """Puts fingerprints of a step, unsigned 64 bit each, into the ring of the newest ones."""
        slots = self._periodic.slots
        index = slots.words[_FINGERPRINTS] % FINGERPRINTS
        slots.signed[PERIODIC.word("fingerprint_step") + index] = step
        slots.words[PERIODIC.word("fingerprint_parameters") + index] = parameters
        slots.words[PERIODIC.word("fingerprint_gradients") + index] = gradients
        slots.words[_FINGERPRINTS] += 1  # after the entry that it counts
        self._periodic.commit(time.monotonic_ns())

    @part_of("fingerprints")
    def nonfinite_parameters(self, count: int) -> None:
        """Counts values among sampled parameters and gradients that are NaN or infinite."""
        self._periodic.slots.count("nonfinite", "parameters", count)

    @part_of("blocks")
    def block_raised(self, error: BaseException | None, phase: str) -> None:
        """Counts an exception that leaves a block; it is the user's, and passes on."""
        if not isinstance(error, Exception):
            return
        if self._periodic.count_out_of_memory(error):
            self._callbacks.recorder.flags |= FLAG["out_of_memory"]
        self._periodic.report_trouble(
            "span_exception", f"{type(error).__name__} left a block of phase {phase}"
        )

    @part_of("spans")
    def block_ended(self, phase: str, began_ns: int, ended_ns: int, *, failed: bool) -> None:
        """Writes the span of a block that is over; monotonic nanoseconds."""
        if self._traces is not None:
            self._traces.phase_ended(phase, began_ns, ended_ns, failed=failed)

    @part_of("checkpoints")
    def checkpoint_ended(self, saved: Saved) -> None:
        """Counts a checkpoint whose write is over, from any thread: now or with the next tick."""
        self._periodic.end_saving(saved)

    @part_of("checkpoints")
    def checkpoint_blocked(self, nanoseconds: int) -> None:
        """Adds the time for which steps waited for a checkpoint."""
        count_checkpoint_seconds(self._periodic.slots, "blocking", nanoseconds * 1e-9)
        self._periodic.commit(time.monotonic_ns())

    @part_of("restores")
    def restore_ended(self, restoring: Restoring, nanoseconds: int, *, failed: bool) -> None:
        """Counts a restore that is over by its outcome."""
        write_restored(self._page, restoring, nanoseconds * 1e-9, failed=failed)
        self._periodic.commit(time.monotonic_ns())

    @part_of("loop_numbers")
    def synced(self, staleness_steps: int | None) -> None:
        """Counts that the rank took over shared parameters; ``lockstep.Monitor`` says what of."""
        now_ns, steps = time.monotonic_ns(), self._page.words[_STEPS]
        if staleness_steps is None:
            staleness_steps = steps - self._synced_steps
        else:
            self._num_independent += 1
        # A server that began anew counts its updates from 0: then the rank lacks none of them.
        staleness_steps = max(0, int(staleness_steps))
        self._synced_steps = steps
        self._num_rounds += 1
        self._staleness_sum += staleness_steps
        slots = self._periodic.slots
        slots.know("sync_rounds", self._num_rounds)
        slots.know("independent_rounds", self._num_independent)
        slots.know("synced_ns", now_ns)
        slots.know("staleness_steps", staleness_steps)
        slots.know("staleness_sum", self._staleness_sum)
        self._periodic.commit(now_ns)

    @part_of("blocks")
    def description(self, name: str, value: float) -> None:
        """Puts one of the numbers that MFU is computed from into the page."""
        self._periodic.slots.know(name, value)
        self._periodic.commit(time.monotonic_ns())


@dataclass(slots=True)
class MonitorState:
    """What a live monitor replaces when it is suspended or goes off.

    A block, or a checkpoint that another thread ends, may outlast the monitor that began it, so
    everybody asks here at the moment of use.

    Attributes:
        recorder: the one that hooks hold; it stays.
        active: what the loop calls: the recorder, or the one that replaces it.
        reports: takes what instrumentation reports.
    """

    recorder: StepRecorder
    active: Recorder
    reports: PageReports


class Blocks:
    """Context managers of a live monitor; ``lockstep.Monitor`` says what each counts."""

    def __init__(self, state: MonitorState) -> None:
        self._state = state
        self._open = set[object]()  # one of each checkpoint that is under way

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is under way."""
        return bool(self._open)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Holds the phase for the block."""
        state, recorder, has_failed = self._state, self._state.recorder, True
        outer_phase, was_held = recorder.phase, recorder.held
        began_ns = state.active.switch_phase(code_of(name))
        recorder.held = True
        try:
            yield
            has_failed = False
        finally:
            if has_failed:
                state.reports.block_raised(sys.exception(), name)
            recorder.held = was_held
            ended_ns = state.active.switch_phase(outer_phase)
            state.reports.block_ended(name, began_ns, ended_ns, failed=has_failed)

    @contextmanager
    def checkpoint(
        self, step: int | None = None, *, in_background: bool = False
    ) -> Iterator[Saving]:
        """Holds the phase, and counts the write at its end."""
        self._open.add(under_way := object())
        saving = Saving(step, partial(self._checkpoint_ended, under_way))
        began_ns = time.monotonic_ns()
        has_failed = True
        try:
            with nullcontext() if in_background else self.phase("checkpoint"):
                yield saving
            has_failed = False
        finally:
            # A write that goes on in the background ends later, by the loop's own call.
            if has_failed or not saving.goes_on:
                saving.end(failed=has_failed)
            if not in_background:
                self._state.reports.checkpoint_blocked(time.monotonic_ns() - began_ns)

    def _checkpoint_ended(self, under_way: object, saved: Saved) -> None:
        self._open.discard(under_way)
        self._state.reports.checkpoint_ended(saved)

    @contextmanager
    def restore(self) -> Iterator[Restoring]:
        """Holds the phase, and counts the restore at its end."""
        restoring, began_ns, has_failed = Restoring(), time.monotonic_ns(), True
        try:
            with self.phase("restore"):
                yield restoring
            has_failed = False
        finally:
            duration_ns = time.monotonic_ns() - began_ns
            self._state.reports.restore_ended(restoring, duration_ns, failed=has_failed)

    def describe(
        self, *, flops_per_token: float | None = None, peak_flops: float | None = None
    ) -> None:
        """Sets what MFU is computed from."""
        for name, value in (("flops_per_token", flops_per_token), ("peak_flops", peak_flops)):
            if value is None:
                continue
            if not 0 < value < float("inf"):
                raise ValueError(
                    f"{name} {value!r} must be a positive number; leave it out if unknown"
                )
            self._state.reports.description(name, float(value))


log = logging.getLogger("lockstep")
T = TypeVar("T")
_ERRORS = SLOT.word("internal_errors")


_OFF = NoopMonitor()


class LiveMonitor:
    """Records one rank: a ``lockstep.Monitor`` that ``lockstep.attach`` creates.

    Args:
        environment: TRACEPARENT and the like, for spans.
        no_step_timeout_seconds: phases may be entered so long without a step before it is reported.
        hang_timeout_seconds: a shorter phase of a step does not count as a hang.
        parts: errors of parts so far.

    Attributes:
        parts: run what may fail without turning the monitor off.
    """

    def __init__(
        self,
        page: PageWriter,
        environment: Mapping[str, str] = os.environ,
        no_step_timeout_seconds: float = 300.0,
        hang_timeout_seconds: float = HANG_TIMEOUT_SECONDS,
        parts: Parts | None = None,
    ) -> None:
        self._page, self.parts = page, parts or Parts()
        self.parts.write_to(page)
        self._traces = self.parts.run("spans", Traces, page, environment)
        self._periodic = PeriodicStats(page, no_step_timeout_seconds, self.parts)
        anomalies = AnomalyDetector(page, self._periodic, hang_timeout_seconds)
        self._callbacks = StepCallbacks(
            page,
            self._periodic,
            self._traces,
            anomalies,
            fail=self.fail,
            step_while_off=self._step_while_off,
            parts=self.parts,
        )
        recorder = self._callbacks.recorder
        reports = PageReports(page, self._periodic, self._traces, self._callbacks, self.parts)
        self._state = MonitorState(recorder, recorder, reports)
        self._bind_blocks(Blocks(self._state))
        self._bind(recorder)
        _handle_forks(self)

    def _bind(self, active: Recorder) -> None:
        """Has the loop call this recorder from now on."""
        self._state.active = active
        # The recorder's own methods and no delegating ones: ten phases and a step take 1.36 us so
        # and 1.60 us by a Python method each, warm; cold, a Python
        # frame costs 3 to 6 us (docs/decisions/0010-hot-path.md).
        self.enter_phase = active.enter_phase
        self.enter_code = active.enter_code
        self.first_arrival = active.first_arrival
        self.wait_begins = active.wait_begins
        self.wait_ended = active.wait_ended
        self.step = active.step

    def _bind_blocks(self, blocks: "Blocks | NoopMonitor") -> None:
        """Has the loop call these from now on."""
        self._blocks = blocks
        self.phase, self.checkpoint = blocks.phase, blocks.checkpoint
        self.restore, self.describe = blocks.restore, blocks.describe

    @property
    def enabled(self) -> bool:
        """Whether steps are recorded now."""
        return self._state.active.on

    @property
    def recorder(self) -> StepRecorder:
        """The recorder that hooks call; while the monitor is off it does nothing."""
        return self._state.recorder

    @property
    def reports(self) -> PageReports:
        """Takes what instrumentation reports now and then."""
        return self._state.reports

    @property
    def observer(self) -> StepObserver:
        """Asked at the ends of the steps that it wants, from the next one on."""
        return self._callbacks.observer

    @observer.setter
    def observer(self, observer: StepObserver) -> None:
        self._callbacks.observer = observer
        self.recorder.wake_step = self.recorder.wake_ns = 0

    @property
    def first_steps(self) -> FirstSteps:
        """Finds what is not seen of the loop."""
        return self._callbacks.first_steps

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is under way."""
        return self._blocks.is_saving

    @property
    def next_step(self) -> int:
        """Number that the step which runs now will have."""
        return self.recorder.next_step

    @property
    def has_mesh(self) -> bool:
        """Whether the rank's coordinates say which shard it holds, beyond replica and stage."""
        return any(axis not in {"dp", "pp"} for axis, _ in self._page.identity.mesh)

    def prepare(self, loader: Iterable[T]) -> Iterable[T]:
        """The same batches; the time until each is there counts as waiting for data."""
        return TimedLoader(self, loader)

    def count_batch(self, batch: Any) -> None:
        """Counts the batch in the step that runs now, but where a block holds the phase."""
        if self.recorder.counts_batches and self.recorder.phase == DATA:
            self.parts.run("loop_numbers", count_batch, self.recorder, batch)

    def synced(self, staleness_steps: int | None = None) -> None:
        """Counts that the rank took over shared parameters, and by how much its own were stale."""
        self._state.reports.synced(staleness_steps)

    def suspend(self) -> None:
        """Writes no rows until ``resume``; called at the end of a step."""
        self.recorder.stop()
        self._bind(SuspendedRecorder(self.recorder, self._observe, self.fail))

    def resume(self, now_ns: int) -> None:
        """Writes rows again; time counts from now on."""
        self.recorder.restart(now_ns)
        self._bind(self.recorder)

    def _observe(self, now_ns: int, step: int) -> None:
        self.observer.step_ended(now_ns, step)

    def _step_while_off(self, number: int | None) -> None:
        """A loop may have taken ``monitor.step`` into a variable before the monitor changed."""
        self._state.active.step(step=number)

    def fail(self, error: Exception) -> None:
        """Counts an error of the recorder, logs it once and turns the monitor off."""
        if self._is_off:
            return
        self._page.words[_ERRORS] += 1
        self._page.commit(time.monotonic_ns())
        log.warning("the monitor is off after an error of its own; training goes on: %r", error)
        self.turn_off()

    @property
    def _is_off(self) -> bool:
        return self._blocks is _OFF

    @guarded
    def close(self, *, failed: bool = False) -> None:
        """Writes what is left and says that the rank is done, or that it failed."""
        if self._is_off:
            return
        if not self.enabled:
            self.resume(time.monotonic_ns())
        error = last_error() if failed else None
        if error is not None:
            self.parts.run("last_error", self._periodic.count_out_of_memory, error)
        self.recorder.due_ns = NEVER  # the last change of phase must not start periodic work
        now_ns = self.recorder.switch_phase(FAILED if failed else DONE)
        self.recorder.settle()
        self.recorder.take_phases()
        # Before the last commit: an error in them is counted too.
        if self._traces is not None:
            self.parts.run("spans", self._traces.close)
        self._callbacks.observer.stop()
        self._callbacks.close()
        self._periodic.close(now_ns)
        self._page.commit(now_ns)
        self._bind(_OFF)
        self.parts.write_to(None)
        self.recorder.release()  # the C code holds buffers of the page, which cannot close before
        self._page.close()
        self.turn_off()

    def turn_off(self) -> None:
        """Does nothing from now on; the loop may still hold the monitor."""
        # First: a step that a recorder gets while it is off goes on to the active one.
        self._bind(_OFF)
        self._bind_blocks(_OFF)
        self._state.reports.parts = NoParts()
        self.recorder.stop()
        self._callbacks.observer.stop()


def _handle_forks(monitor: LiveMonitor) -> None:
    """The child of a fork leaves the page alone; the parent counts the fork."""
    reference = weakref.ref(monitor)  # what os holds stays for the life of the process

    def turn_child_off() -> None:
        if (copy := reference()) is not None:
            copy.turn_off()

    def report() -> None:
        if (original := reference()) is not None:
            original.reports.fork()

    os.register_at_fork(after_in_child=turn_child_off, after_in_parent=report)
