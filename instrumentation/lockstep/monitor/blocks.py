"""Blocks that a loop puts around work outside its steps: evaluation, checkpoints, restores."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lockstep.monitor.checkpoint_handles import Restoring, Saved, Saving
from lockstep.monitor.reports import PageReports
from lockstep.recorder.interface import Recorder, StepRecorder
from lockstep.recorder.phases import code_of


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
    def checkpoint(self, step: int | None = None) -> Iterator[Saving]:
        """Holds the phase, and counts the write at its end."""
        saving = Saving(step, self._checkpoint_ended)
        began_ns = time.monotonic_ns()
        has_failed = True
        try:
            with self.phase("checkpoint"):
                yield saving
            has_failed = False
        finally:
            # A write that goes on in the background ends later, by the loop's own call.
            if has_failed or not saving.goes_on:
                saving.end(failed=has_failed)
            self._state.reports.checkpoint_blocked(time.monotonic_ns() - began_ns)

    def _checkpoint_ended(self, saved: Saved) -> None:
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
