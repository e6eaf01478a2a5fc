"""The monitor as a training loop and its integrations see it."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

from lockstep.monitor.checkpoint_handles import Restoring, Saving
from lockstep.recorder.interface import LoopCalls, NoopRecorder

T = TypeVar("T")


class NoopMonitor(NoopRecorder):
    """Takes every call of a ``Monitor`` and records nothing."""

    enabled = is_saving = False
    next_step = 0
    count_batch = describe = synced = fail = close = NoopRecorder._do_nothing  # noqa: SLF001  # of the base class

    def prepare(self, loader: Iterable[T]) -> Iterable[T]:
        """The loader itself."""
        return loader

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Runs the block."""
        del name
        yield

    @contextmanager
    def checkpoint(
        self, step: int | None = None, *, in_background: bool = False
    ) -> Iterator[Saving]:
        """Runs the block."""
        del in_background
        yield Saving(step, lambda _: None)

    @contextmanager
    def restore(self) -> Iterator[Restoring]:
        """Runs the block."""
        yield Restoring()


class Monitor(LoopCalls, Protocol):
    """What ``lockstep.attach`` returns; every method is safe to call at any time.

    Every method is there whether the monitor records or not, so that no loop branches.
    """

    @property
    def enabled(self) -> bool:
        """Whether steps are recorded now."""

    @property
    def next_step(self) -> int:
        """Number that the step which runs now will have."""

    def prepare(self, loader: Iterable[T]) -> Iterable[T]:
        """The same batches; the time until each is there counts as waiting for data."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Counts the block as one phase, whatever hooks fire inside, such as in an evaluation.

        Raises:
            ValueError: no phase has that name.
        """

    def checkpoint(
        self, step: int | None = None, *, in_background: bool = False
    ) -> AbstractContextManager[Saving]:
        """Counts the block as writing a checkpoint; an exception in it makes the attempt failed.

        With ``later()`` on what it gives, the write goes on after the block, until ``end()``.

        Args:
            step: the checkpoint's, where it is known.
            in_background: whether another thread than the loop's runs the block, so that no step
                waits for it.
        """

    def restore(self) -> AbstractContextManager[Restoring]:
        """Counts the block as restoring a checkpoint; say ``found`` on what it gives."""

    def describe(
        self, *, flops_per_token: float | None = None, peak_flops: float | None = None
    ) -> None:
        """Sets what MFU is computed from.

        Args:
            flops_per_token: model FLOPs of forward and backward, without recomputation.
            peak_flops: FLOP/s of this rank's device in the precision of the run.

        Raises:
            ValueError: one of them is not a positive number.
        """

    def synced(self, staleness_steps: int | None = None) -> None:
        """Counts that the rank took over shared parameters, where not every step shares gradients.

        Args:
            staleness_steps: updates of other ranks that its last update lacked, where it waits for
                none of them, as with a parameter server. None where all ranks meet in a round, as
                in local SGD: then its own steps since the round before.
        """

    def close(self, *, failed: bool = False) -> None:
        """Writes what is left and says that the rank is done, or that it failed."""
