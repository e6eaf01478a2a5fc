"""Blocks that a loop puts around what is no ordinary step: evaluation, checkpoints, restores."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from lockstep.guard import guarded
from lockstep.monitor.anomalies import FLAG, AnomalyDetector
from lockstep.monitor.checkpoint_handles import Restoring, Saving, write_restored
from lockstep.monitor.divergence import LossJudge
from lockstep.monitor.loading import TimedLoader
from lockstep.monitor.noop import NoopMonitor
from lockstep.monitor.periodic import PeriodicStats
from lockstep.recorder.device_numbers import LateNumbers
from lockstep.recorder.phases import INIT, OTHER, code_of
from lockstep.recorder.recorder import StepRecorder
from lockstep.telemetry.traces import Traces
from lockstep_records.page.layout import FINGERPRINTS, LATE_LOSSES, PERIODIC
from lockstep_records.page.writer import PageWriter

T = TypeVar("T")
_FINGERPRINTS = PERIODIC.word("fingerprints")
_LATE, _DROPPED = PERIODIC.word("late_losses"), PERIODIC.word("device_dropped")


class MonitorBase(NoopMonitor):
    """The part of a monitor that is not in a hurry."""

    _page: PageWriter
    _periodic: PeriodicStats
    _traces: Traces
    _anomalies: AnomalyDetector
    _judge: LossJudge
    recorder: StepRecorder

    @property
    def has_mesh(self) -> bool:
        """Whether the rank's coordinates name more than its data-parallel replica."""
        return any(axis != "dp" for axis, _ in self._page.identity.mesh)

    def _switch_phase(self, code: int) -> int:
        raise NotImplementedError

    def inspect_loss(self, loss: float) -> int:
        """Looks into a loss that is not below the bound; gives the step's flags."""
        raise NotImplementedError

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the block as one phase, whatever hooks fire inside, such as in an evaluation.

        Raises:
            ValueError: no phase has that name.
        """
        recorder, failed = self.recorder, True
        outer, was_held = recorder.now_in, recorder.held
        began_ns = self._switch_phase(code_of(name))
        recorder.held = True
        try:
            yield
            failed = False
        finally:
            if failed:
                self._note(sys.exception(), name)
            recorder.held = was_held
            ended_ns = self._switch_phase(outer if was_held or outer == INIT else OTHER)
            self._trace(name, began_ns, ended_ns, failed=failed)

    @guarded
    def _trace(self, name: str, began_ns: int, ended_ns: int, *, failed: bool) -> None:
        self._traces.phase_ended(name, began_ns, ended_ns, failed=failed)

    @guarded
    def _note(self, error: BaseException | None, name: str) -> None:
        """The user's own error leaves a block: it is theirs, and passes on."""
        if not isinstance(error, Exception):
            return
        if self._periodic.tell_error(error):
            self.recorder.flags |= FLAG["out_of_memory"]
        self._periodic.tell(
            "span_exception", f"{type(error).__name__} left a block of phase {name}"
        )

    def prepare(self, loader: Iterable[T]) -> Iterable[T]:
        """The same batches; the time until each is there counts as waiting for data."""
        return TimedLoader(self, loader)

    @contextmanager
    def checkpoint(self, step: int | None = None) -> Iterator[Saving]:
        """Counts the block as writing a checkpoint; an exception in it makes the attempt failed.

        With ``later()`` on what it gives, the write goes on after the block, until ``end()``.
        """
        saving = Saving(step, self._periodic.end_saving)
        began_ns = time.monotonic_ns()
        good = False
        try:
            with self.phase("checkpoint"):
                yield saving
            good = True
        finally:
            if not (good and saving.goes_on):
                saving.end(failed=not good)
            self._count_blocking(time.monotonic_ns() - began_ns)

    @guarded
    def tell_fork(self) -> None:
        """Counts a fork of this process; the child leaves the page alone."""
        self._periodic.tell(
            "fork", "the process forked: the child writes no page", level=logging.INFO
        )

    @guarded
    def tell_shape(self) -> None:
        """Counts a model whose parameters are not those that were hung on."""
        self._periodic.tell("shape_change", "the model's parameters have changed in number or size")

    @guarded
    def tell_fingerprint(self, step: int, parameters: int, gradients: int) -> None:
        """Keeps the fingerprints of a step, unsigned 64 bit each."""
        slots = self._periodic.slots
        place = slots.words[_FINGERPRINTS] % FINGERPRINTS
        slots.signed[PERIODIC.word("fingerprint_step") + place] = step
        slots.words[PERIODIC.word("fingerprint_parameters") + place] = parameters
        slots.words[PERIODIC.word("fingerprint_gradients") + place] = gradients
        slots.words[_FINGERPRINTS] += 1
        self._periodic.commit(time.monotonic_ns())

    @guarded
    def tell_nonfinite(self, number: int) -> None:
        """Counts values among sampled parameters and gradients that are NaN or infinite."""
        self._periodic.slots.count("nonfinite", "parameters", number)

    @guarded
    def tell_late(self, late: LateNumbers) -> None:
        """Takes in numbers that a device gave after their step, whose row stays as it is."""
        state, slots, flags = self._page.now, self._periodic.slots, 0
        if late.loss is not None:
            state.know("loss", late.loss)
            if self._judge.floor < late.loss <= self._judge.bound:
                self._judge.losses.append(late.loss)
            else:
                flags |= self.inspect_loss(late.loss)
            place = slots.words[_LATE] % LATE_LOSSES
            slots.signed[PERIODIC.word("late_loss_step") + place] = late.step
            slots.floats[PERIODIC.word("late_loss") + place] = late.loss
            slots.words[_LATE] += 1
        if late.gradient_norm is not None:
            state.know("gradient_norm", late.gradient_norm)
            flags |= self._anomalies.norm(late.gradient_norm)
        if late.learning_rate is not None:
            state.know("learning_rate", late.learning_rate)
        state.count("nonfinite_steps", number=bool(flags & FLAG["nonfinite"]))

    @guarded
    def tell_device(self, seconds: Mapping[str, float]) -> None:
        """Counts a sampled step by the seconds of the device's stream in each phase."""
        slots = self._periodic.slots
        slots.count("device_steps")
        for phase, spent in seconds.items():
            slots.add("device_seconds", spent, phase)

    @guarded
    def tell_dropped(self, number: int) -> None:
        """Tells how many sampled steps and numbers of a device have been given up so far."""
        self._periodic.slots.words[_DROPPED] = number

    @guarded
    def _count_blocking(self, nanoseconds: int) -> None:
        self._periodic.slots.add("checkpoint_blocking_seconds", nanoseconds * 1e-9)
        self._periodic.commit(time.monotonic_ns())

    @contextmanager
    def restore(self) -> Iterator[Restoring]:
        """Counts the block as restoring a checkpoint; say ``found`` on what it gives."""
        restoring, began_ns, good = Restoring(), time.monotonic_ns(), False
        try:
            with self.phase("restore"):
                yield restoring
            good = True
        finally:
            self._count_restore(restoring, time.monotonic_ns() - began_ns, failed=not good)

    @guarded
    def _count_restore(self, restoring: Restoring, nanoseconds: int, *, failed: bool) -> None:
        write_restored(self._page, restoring, nanoseconds * 1e-9, failed=failed)
        self._periodic.commit(time.monotonic_ns())

    def describe(
        self, *, flops_per_token: float | None = None, peak_flops: float | None = None
    ) -> None:
        """Tells what MFU is reckoned from.

        Args:
            flops_per_token: model FLOPs of forward and backward, without recomputation.
            peak_flops: FLOP/s of this rank's device in the precision of the run.

        Raises:
            ValueError: one of them is no positive number.
        """
        for name, value in (("flops_per_token", flops_per_token), ("peak_flops", peak_flops)):
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(
                    f"{name} {value!r} must be a positive number; leave it out if unknown"
                )
            if value is not None:
                self._periodic.slots.know(name, float(value))
        self._periodic.commit(time.monotonic_ns())
