"""What else watches a loop: nothing."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn


class Alone:
    """Lockstep watches alone; whoever watches beside it overrides what it needs."""

    def batches(self, batches: Iterator[Tensor]) -> Iterator[Tensor]:
        """The batches, their fetches seen."""
        return batches

    def step(self, model: nn.Module) -> AbstractContextManager[object]:
        """A block around each step's work, without the fetch."""
        del model
        return nullcontext()

    def section(self, name: str) -> AbstractContextManager[object]:
        """A block around a phase."""
        del name
        return nullcontext()

    def close(self) -> None:
        """Tells what was seen; every rank calls it."""
