"""What watches a loop next to Lockstep: nothing, unless a subclass does."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn


class Sidecar:
    """Watches nothing; a tool that runs in the same loop overrides what it needs."""

    def batches(self, batches: Iterator[Tensor]) -> Iterator[Tensor]:
        """The batches; a subclass may measure the fetches."""
        return batches

    def step(self, model: nn.Module) -> AbstractContextManager[object]:
        """Context of each step's work, without the fetch."""
        del model
        return nullcontext()

    def section(self, name: str) -> AbstractContextManager[object]:
        """Context of a phase."""
        del name
        return nullcontext()

    def close(self) -> None:
        """Writes the result; every rank calls it."""
