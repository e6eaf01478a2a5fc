"""Times how long a loop waits for its next batch, whatever the loader is."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from lockstep.recorder.interface import LoopCalls
from lockstep.recorder.phases import DATA, OTHER


class TakesBatches(LoopCalls, Protocol):
    """Takes the phases of a loop and its batches."""

    def count_batch(self, batch: Any) -> None:
        """Counts what the loop is given, as samples and tokens of the step that runs now."""


class TimedLoader:
    """A loader whose ``next`` is timed; everything else is the loader's own."""

    def __init__(self, monitor: TakesBatches, loader: Iterable[Any]) -> None:
        self._monitor, self._loader = monitor, loader

    def __iter__(self) -> Iterator[Any]:
        monitor, batches = self._monitor, iter(self._loader)
        while True:
            monitor.enter_code(DATA)
            try:
                batch = next(batches)
                monitor.count_batch(batch)
            except StopIteration:
                return
            finally:
                monitor.enter_code(OTHER)
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a loader without a length says so itself

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
