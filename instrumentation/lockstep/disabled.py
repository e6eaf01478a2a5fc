"""The monitor that does nothing: the same methods, so that no loop ever branches."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lockstep.phases import NOT_WAITING

T = TypeVar("T")


class Disabled:
    """Takes every call of a Monitor and records nothing."""

    enabled = False

    def prepare(self, loader: Iterable[T]) -> Iterable[T]:
        """The loader itself."""
        return loader

    def mark(self, phase: str) -> None:
        """Nothing."""

    def enter(self, code: int) -> None:
        """Nothing."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Runs the block."""
        del name
        yield

    @contextmanager
    def checkpoint(self, step: int | None = None) -> Iterator[None]:
        """Runs the block."""
        del step
        yield

    def step(
        self,
        *,
        step: int | None = None,
        loss: object = None,
        gradient_norm: object = None,
        learning_rate: object = None,
        tokens: int = 0,
        samples: int = 0,
    ) -> None:
        """Nothing."""

    def first_arrival(self) -> None:
        """Nothing."""

    def wait_begins(self) -> int:
        """Nothing to come back to."""
        return NOT_WAITING

    def wait_ended(
        self, interrupted: int, kind: str | None, calls: int = 1, size_bytes: int = 0
    ) -> None:
        """Nothing."""

    def fail(self, error: Exception) -> None:
        """Nothing."""

    def close(self, *, failed: bool = False) -> None:
        """Nothing."""
