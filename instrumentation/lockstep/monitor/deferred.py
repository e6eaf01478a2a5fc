"""The monitor of a rank that does not know yet which rank it is: it records from then on.

A loop may attach before ``init_process_group``, under a launcher that sets no rank. The page is
born when the process group is there, or at the end of the first step of a job that makes none.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

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

    Attributes:
        monitor: takes the calls; one that does nothing until the rank is known.
    """

    def __init__(self, create: Callable[[], Monitor], is_due: Callable[[], bool]) -> None:
        self._create, self._is_due = create, is_due
        self.monitor: Monitor = NoopMonitor()
        self._is_pending = True
        self._description: dict[str, float | None] = {}

    def create_monitor(self) -> None:
        """Creates the monitor, unless it has been."""
        if not self._is_pending:
            return
        self._is_pending = False
        self.monitor = self._create()
        if self._description:
            self.monitor.describe(**self._description)
        # The loop calls it directly from now on, as it would one that was there from the start.
        for name in _HOT:
            setattr(self, name, getattr(self.monitor, name))

    def create_when_due(self) -> None:
        """Creates the monitor once the rank is known."""
        if self._is_pending and self._is_due():
            self.create_monitor()

    def __getattr__(self, name: str) -> Any:
        """What is not here is the monitor's, which is created first where it is called and due."""
        value = getattr(self.monitor, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            self.create_when_due()
            return getattr(self.monitor, name)(*args, **kwargs)

        return call

    def step(self, **fields: Any) -> None:
        """Ends the step; the first one ends the time in which a group is waited for."""
        self.create_monitor()
        self.monitor.step(**fields)

    def prepare(self, loader: Iterable[T]) -> Iterable[T]:
        """The same batches; the time until each is there counts as waiting for data."""
        return TimedLoader(self, loader)

    def describe(
        self, *, flops_per_token: float | None = None, peak_flops: float | None = None
    ) -> None:
        """Sets what MFU is computed from, now or when there is a page."""
        self.create_when_due()
        given = {"flops_per_token": flops_per_token, "peak_flops": peak_flops}
        if self._is_pending:
            self._description |= {name: value for name, value in given.items() if value is not None}
        self.monitor.describe(**given)

    def close(self, *, failed: bool = False) -> None:
        """Ends the monitor; one that was never created stays so."""
        self._is_pending = False
        self.monitor.close(failed=failed)
