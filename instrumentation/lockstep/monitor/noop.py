"""The monitor that does nothing: the same methods, so that no loop ever branches."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lockstep.monitor.checkpoint_handles import Restoring, Saving
from lockstep.recorder.interface import NoopRecorder

T = TypeVar("T")


class NoopMonitor(NoopRecorder):
    """Takes every call of a ``Monitor`` and records nothing."""

    enabled = False
    next_step = 0
    is_in_block = False
    count_batch = describe = synced = fail = fail_part = close = NoopRecorder._do_nothing  # noqa: SLF001  # of the base class

    def prepare(self, loader: Iterable[T]) -> Iterable[T]:
        """The loader itself."""
        return loader

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Runs the block."""
        del name
        yield

    @contextmanager
    def checkpoint(self, step: int | None = None) -> Iterator[Saving]:
        """Runs the block."""
        yield Saving(step, lambda _: None)

    @contextmanager
    def restore(self) -> Iterator[Restoring]:
        """Runs the block."""
        yield Restoring()
