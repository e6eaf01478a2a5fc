"""The monitor that does nothing: the same methods, so that no loop ever branches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from lockstep.monitor.checkpoint_handles import Restoring, Saving
from lockstep.recorder.device_numbers import LateNumbers
from lockstep.recorder.phases import NOT_WAITING

T = TypeVar("T")


class NoopMonitor:
    """Takes every call of a Monitor and records nothing."""

    enabled = False

    def prepare(self, loader: Iterable[T]) -> Iterable[T]:
        """The loader itself."""
        return loader

    def enter_phase(self, phase: str) -> None:
        """Ends the current phase and begins the named one; here it does nothing.

        Raises:
            ValueError: no phase has that name.
        """

    def enter_code(self, code: int) -> None:
        """Nothing."""

    def _switch_phase(self, code: int) -> int:
        """Nothing; a block may end after the monitor has turned off within it."""
        del code
        return 0

    def _trace(self, name: str, began_ns: int, ended_ns: int, *, failed: bool) -> None:
        """Nothing; the same."""

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

    def describe(
        self, *, flops_per_token: float | None = None, peak_flops: float | None = None
    ) -> None:
        """Nothing."""

    def tell_fork(self) -> None:
        """Nothing."""

    def tell_shape(self) -> None:
        """Nothing."""

    def tell_fingerprint(self, step: int, parameters: int, gradients: int) -> None:
        """Nothing."""

    def tell_nonfinite(self, number: int) -> None:
        """Nothing."""

    def tell_late(self, late: LateNumbers) -> None:
        """Nothing."""

    def tell_device(self, seconds: Mapping[str, float]) -> None:
        """Nothing."""

    def tell_dropped(self, number: int) -> None:
        """Nothing."""

    @property
    def has_mesh(self) -> bool:
        """Nothing is known of the rank."""
        return False

    @property
    def next_step(self) -> int:
        """Nothing is counted."""
        return 0

    def step(
        self,
        *,
        step: int | None = None,
        loss: Any = None,
        gradient_norm: Any = None,
        learning_rate: Any = None,
        tokens: int = 0,
        samples: int = 0,
        sequence_lengths: Sequence[int] = (),
    ) -> None:
        """Ends the step and writes its row; here it does nothing.

        Args:
            step: number of the step as the job counts; counted from 0 when left out.
            loss: training loss of this rank; a number or a tensor on the CPU. A tensor on a GPU
                would have to be waited for: it is read some steps later.
            gradient_norm: norm before clipping; the same kinds.
            learning_rate: learning rate of the step.
            tokens: tokens of this rank in the step; the sum of the lengths when left out.
            samples: samples of this rank in the step; as many as lengths when left out.
            sequence_lengths: tokens of each sequence of this rank in the step.
        """

    def step_while_off(self, number: int | None) -> None:
        """Nothing: a recorder of before may still be held by somebody."""

    def first_arrival(self) -> None:
        """Nothing."""

    def wait_begins(self) -> int:
        """Nothing to come back to."""
        return NOT_WAITING

    def wait_ended(
        self,
        interrupted: int,
        kind: str | None,
        calls: int = 1,
        size_bytes: int = 0,
        ranks: int | None = None,
    ) -> None:
        """Nothing."""

    def fail(self, error: Exception) -> None:
        """Nothing."""

    def close(self, *, failed: bool = False) -> None:
        """Nothing."""
