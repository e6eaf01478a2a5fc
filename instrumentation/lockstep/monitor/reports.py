"""Reports of instrumentation now and then, as the page's periodic slot keeps them."""

import logging
import time

from lockstep.guard import Parts, part_of
from lockstep.monitor.checkpoint_handles import (
    Restoring,
    Saved,
    count_checkpoint_seconds,
    write_restored,
)
from lockstep.monitor.periodic import PeriodicStats
from lockstep.monitor.step_callbacks import StepCallbacks
from lockstep.recorder.phases import FLAG
from lockstep.telemetry.traces import Traces
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
