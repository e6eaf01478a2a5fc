"""What a loop tells of its checkpoints and restores; whoever holds one may tell from any thread."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from lockstep_records.page.writer import PageWriter


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A write that has come to its end.

    Attributes:
        seconds: from its begin to its end, the part for which steps waited among them.
        size_bytes: that this rank wrote; None where nobody said.
        is_good: whether it is durable.
        is_verified: whether it was read back and proved.
        end_wall_ns: when it was durable.
    """

    step: int | None
    seconds: float
    size_bytes: int | None
    is_good: bool
    is_verified: bool
    end_wall_ns: int


class Saving:
    """One checkpoint while it is written.

    Unless ``later`` is called, it ends with the block of ``monitor.checkpoint``, well or by the
    exception that leaves it.
    """

    def __init__(self, step: int | None, ended: Callable[[Saved], object]) -> None:
        self.step = step
        self._tell = ended
        self._began_ns = time.monotonic_ns()
        self._size_bytes: int | None = None
        self._is_verified = self._is_over = False
        self.goes_on = False

    def later(self) -> None:
        """The write goes on after the block; ``end`` will be called when it is through."""
        self.goes_on = True

    def wrote(self, size_bytes: int) -> None:
        """So many more bytes were written by this rank."""
        self._size_bytes = (self._size_bytes or 0) + size_bytes

    def verified(self) -> None:
        """What was written was read back and is what it should be."""
        self._is_verified = True

    def end(self, *, failed: bool = False, seconds: float | None = None) -> None:
        """It is durable, or it failed; only the first call counts.

        Args:
            failed: whether nothing durable came of it.
            seconds: that the write took, where that is not until now.
        """
        if self._is_over:
            return
        self._is_over = True
        told = (time.monotonic_ns() - self._began_ns) * 1e-9 if seconds is None else seconds
        self._tell(
            Saved(
                step=self.step,
                seconds=told,
                size_bytes=self._size_bytes,
                is_good=not failed,
                is_verified=self._is_verified and not failed,
                end_wall_ns=time.time_ns(),
            )
        )


class Restoring:
    """One restore while it runs; say what came of it, or nothing is counted but its time."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self.restored: int | None = None
        self.passed_over = 0
        self.has_failed = False

    def found(self, step: int, *, asked: int | None = None, passed_over: int = 0) -> None:
        """A checkpoint is restored, or none was valid.

        Args:
            step: that was restored; 0 where the run starts afresh.
            asked: step that was wanted; None for the newest.
            passed_over: newer checkpoints that were not valid.
        """
        self.restored, self.asked, self.passed_over = step, asked, passed_over

    def fail(self) -> None:
        """Nothing could be restored, though no exception leaves the block."""
        self.has_failed = True

    @property
    def outcome(self) -> str | None:
        """A value of the label ``restore``; None where nothing was there."""
        if self.has_failed:
            return "failed"
        if self.restored is None:
            return None
        other = self.asked is not None and self.asked != self.restored
        return "fallback" if self.passed_over or other else "ok"


def write_saved(page: PageWriter, saved: Saved) -> None:
    """Takes a checkpoint into the page, to be made readable by the next commits."""
    page.count_checkpoint("ok" if saved.is_good else "failed")
    periodic = page.periodic
    periodic.add("checkpoint_persisting_seconds", saved.seconds)
    periodic.know("write_seconds", saved.seconds)
    if saved.step is not None:
        periodic.know("write_step", saved.step)
    if saved.size_bytes is not None:
        periodic.count("checkpoint_bytes", number=saved.size_bytes)
    if saved.is_verified:
        periodic.count("checkpoints_verified")
    if saved.is_good:
        page.now.know("checkpoint_wall_ns", saved.end_wall_ns)
        if saved.step is not None:
            page.now.know("checkpoint_step", saved.step)


def write_restored(page: PageWriter, restoring: Restoring, seconds: float, *, failed: bool) -> None:
    """Takes a restore into the page."""
    outcome = "failed" if failed else restoring.outcome
    periodic = page.periodic
    periodic.add("restore_seconds", seconds)
    if outcome is None:
        return
    periodic.count("restores", outcome)
    periodic.count("passed_over", number=restoring.passed_over)
    if restoring.asked is not None:
        periodic.know("restore_asked", restoring.asked)
    if restoring.restored is not None:
        periodic.know("restored_step", restoring.restored)
