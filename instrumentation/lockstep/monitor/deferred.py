"""The monitor of a rank that does not know yet which rank it is: it records from then on.

A loop may attach before ``init_process_group``, under a launcher that sets no rank. The page is
born when the process group is there, or at the end of the first step of a job that makes none.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from lockstep.monitor.checkpoint_handles import Restoring, Saving
from lockstep.monitor.loading import TimedLoader
from lockstep.monitor.noop import NoopMonitor
from lockstep.monitor.protocol import Monitor

T = TypeVar("T")
_HOT = ("enter_phase", "enter_code", "first_arrival", "wait_begins", "wait_ended", "step")


class DeferredMonitor:
    """Hands every call to the monitor that ``create`` gives, once there is one.

    Args:
        create: makes the monitor of this rank; raises nothing.
        is_due: whether the rank is known.
    """

    def __init__(self, create: Callable[[], Monitor], is_due: Callable[[], bool]) -> None:
        self._create, self._is_due = create, is_due
        self._monitor: Monitor = NoopMonitor()
        self._is_pending = True
        self._description: dict[str, float | None] = {}

    def create_monitor(self) -> None:
        """Creates the monitor, unless it has been."""
        if not self._is_pending:
            return
        self._is_pending = False
        self._monitor = self._create()
        if self._description:
            self._monitor.describe(**self._description)
        # The loop calls it directly from now on, as it would one that was there from the start.
        for name in _HOT:
            setattr(self, name, getattr(self._monitor, name))

    def _create_when_due(self) -> None:
        if self._is_pending and self._is_due():
            self.create_monitor()

    @property
    def enabled(self) -> bool:
        """Whether steps are recorded now."""
        return self._monitor.enabled

    @property
    def next_step(self) -> int:
        """Number that the step which runs now will have."""
        return self._monitor.next_step

    @property
    def is_in_block(self) -> bool:
        """Whether a block holds the phase."""
        return self._monitor.is_in_block

    def enter_phase(self, phase: str) -> None:
        """Ends the current phase and begins the named one."""
        self._create_when_due()
        self._monitor.enter_phase(phase)

    def enter_code(self, code: int) -> None:
        """The same by the phase's code."""
        self._create_when_due()
        self._monitor.enter_code(code)

    def first_arrival(self) -> None:
        """Notes that the rank has handed over its first gradients of the step."""
        self._monitor.first_arrival()

    def wait_begins(self) -> int:
        """Begins a wait for other ranks."""
        return self._monitor.wait_begins()

    def wait_ended(self, interrupted: int, kind: str | None, *args: Any, **kwargs: Any) -> None:
        """Ends a wait."""
        self._monitor.wait_ended(interrupted, kind, *args, **kwargs)

    def step(self, **fields: Any) -> None:
        """Ends the step; the first one ends the time in which a group is waited for."""
        self.create_monitor()
        self._monitor.step(**fields)

    def prepare(self, loader: Iterable[T]) -> Iterable[T]:
        """The same batches; the time until each is there counts as waiting for data."""
        return TimedLoader(self, loader)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Counts the block as one phase."""
        self._create_when_due()
        return self._monitor.phase(name)

    def checkpoint(self, step: int | None = None) -> AbstractContextManager[Saving]:
        """Counts the block as writing a checkpoint."""
        self._create_when_due()
        return self._monitor.checkpoint(step)

    def restore(self) -> AbstractContextManager[Restoring]:
        """Counts the block as restoring a checkpoint."""
        self._create_when_due()
        return self._monitor.restore()

    def describe(
        self, *, flops_per_token: float | None = None, peak_flops: float | None = None
    ) -> None:
        """Sets what MFU is computed from, now or when there is a page."""
        self._create_when_due()
        given = {"flops_per_token": flops_per_token, "peak_flops": peak_flops}
        if self._is_pending:
            self._description |= {name: value for name, value in given.items() if value is not None}
        self._monitor.describe(**given)

    def fail(self, error: Exception) -> None:
        """Counts an error of the recorder, and turns the monitor off."""
        self._monitor.fail(error)

    def fail_part(self, part: str, error: Exception) -> None:
        """Counts an error of one part, which is off from then on."""
        self._monitor.fail_part(part, error)

    def close(self, *, failed: bool = False) -> None:
        """Ends the monitor; one that was never created stays so."""
        self._is_pending = False
        self._monitor.close(failed=failed)
