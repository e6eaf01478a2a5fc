"""Handles of checkpoints and restores, on which a loop says how they went; from any thread."""

import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from lockstep_records.page.layout import CHECKPOINT_BUCKET_ITEMS, CHECKPOINT_BUCKETS
from lockstep_records.page.writer import PageWriter, Slots


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint whose write has ended.

    Attributes:
        seconds: from its begin to its end, with the part for which steps waited.
        size_bytes: that this rank wrote; None where the loop does not say.
        is_good: whether it is durable.
        is_verified: whether it was read back and found the same.
        is_invalid: whether it was read back and found different.
        end_wall_ns: wall clock when it was durable.
    """

    step: int | None
    seconds: float
    size_bytes: int | None
    is_good: bool
    is_verified: bool
    is_invalid: bool
    end_wall_ns: int


class Saving:
    """One checkpoint while it is written.

    Unless ``later`` is called, it ends with the block of ``monitor.checkpoint``; an exception that
    leaves the block makes it a failed one.
    """

    def __init__(self, step: int | None, ended: Callable[[Saved], object]) -> None:
        self.step = step
        self._ended = ended
        self._began_ns = time.monotonic_ns()
        self._size_bytes: int | None = None
        self._is_verified = self._is_invalid = self._is_over = False
        self.goes_on = False

    def later(self) -> None:
        """The write goes on after the block; the loop calls ``end`` when it is durable."""
        self.goes_on = True

    def wrote(self, size_bytes: int) -> None:
        """Adds bytes that this rank has written."""
        self._size_bytes = (self._size_bytes or 0) + size_bytes

    def verified(self) -> None:
        """What was written was read back and is the same."""
        self._is_verified = True

    def invalid(self) -> None:
        """What was written was read back and differs: nothing durable, and a case of its own."""
        self._is_invalid = True

    def end(self, *, failed: bool = False, seconds: float | None = None) -> None:
        """Ends the write: it is durable, or it failed; only the first call counts.

        Args:
            failed: whether nothing durable was written.
            seconds: duration of the write; until now where left out.
        """
        # Both the block and a thread that writes in the background may end it.
        if self._is_over:
            return
        self._is_over = True
        is_good = not failed and not self._is_invalid
        if seconds is None:
            seconds = (time.monotonic_ns() - self._began_ns) * 1e-9
        self._ended(
            Saved(
                step=self.step,
                seconds=seconds,
                size_bytes=self._size_bytes,
                is_good=is_good,
                is_verified=self._is_verified and is_good,
                is_invalid=self._is_invalid,
                end_wall_ns=time.time_ns(),
            )
        )


class Restoring:
    """One restore while it runs; without ``found`` or ``fail`` only its time is counted."""

    def __init__(self) -> None:
        self.requested: int | None = None
        self.restored: int | None = None
        self.passed_over = 0
        self.has_failed = False

    def found(self, step: int, *, requested: int | None = None, passed_over: int = 0) -> None:
        """A checkpoint is restored, or none was valid.

        Args:
            step: that was restored; 0 where the run starts afresh.
            requested: step that was asked for; None for the newest.
            passed_over: newer checkpoints that were not valid.
        """
        self.restored, self.requested, self.passed_over = step, requested, passed_over

    def fail(self) -> None:
        """Nothing could be restored, though no exception leaves the block."""
        self.has_failed = True

    @property
    def outcome(self) -> str | None:
        """A value of the label ``restore``; None where there was no checkpoint."""
        if self.has_failed:
            return "failed"
        if self.restored is None:
            return None
        is_other = self.requested is not None and self.requested != self.restored
        return "fallback" if self.passed_over or is_other else "ok"


def write_saved(page: PageWriter, saved: Saved) -> None:
    """Writes a checkpoint into the page; the next commits make it readable."""
    periodic = page.periodic
    if saved.is_invalid:
        periodic.count("checkpoints_invalid")
    else:
        page.count_checkpoint("ok" if saved.is_good else "failed")
    count_checkpoint_seconds(periodic, "persisting", saved.seconds)
    periodic.know("write_seconds", saved.seconds)
    if saved.step is not None:
        periodic.know("write_step", saved.step)
    if saved.size_bytes is not None:
        periodic.count("checkpoint_bytes", number=saved.size_bytes)
    if saved.is_verified:
        periodic.count("checkpoints_verified")
    # A failed write leaves the newest good checkpoint as it was: its age is what the alert needs.
    if saved.is_good:
        page.now.know("checkpoint_wall_ns", saved.end_wall_ns)
        if saved.step is not None:
            page.now.know("checkpoint_step", saved.step)


def count_checkpoint_seconds(periodic: Slots, writing: str, seconds: float) -> None:
    """Adds a duration to the page's sum and histogram of the label ``writing``."""
    periodic.add(f"checkpoint_{writing}_seconds", seconds)
    bucket = CHECKPOINT_BUCKET_ITEMS[bisect_left(CHECKPOINT_BUCKETS, seconds)]
    periodic.count(f"checkpoint_{writing}_buckets", bucket)


def write_restored(page: PageWriter, restoring: Restoring, seconds: float, *, failed: bool) -> None:
    """Writes a restore into the page; the next commit makes it readable."""
    outcome = "failed" if failed else restoring.outcome
    periodic = page.periodic
    periodic.add("restore_seconds", seconds)
    if outcome is None:
        return
    periodic.count("restores", outcome)
    periodic.count("passed_over", number=restoring.passed_over)
    if restoring.requested is not None:
        periodic.know("restore_requested", restoring.requested)
    if restoring.restored is not None:
        periodic.know("restored_step", restoring.restored)
