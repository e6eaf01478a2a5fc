"""The end of a job in its own words: provisional until an explicit final status."""

import re
from dataclasses import dataclass

from lockstep_outcomes.joblogs.reading.prefix import Stamp

_PLANNED = re.compile(
    r"(?i)exiting program after (?P<minutes>\d{1,9}(?:\.\d{1,6})?)\.? minutes"
    r"|exiting program at iteration"
)
_RUNTIME = re.compile(r"train_runtime['\"]?\s*[:=]\s*(?P<seconds>\d{1,10}(?:\.\d+)?)\b(?!:)")
_SUCCESS = "success"
# Work that may follow the end of training, and whose own end makes the end stand again.
_CLOSING = {"checkpoint": "checkpoint_saved"}


@dataclass(slots=True)
class JobEnd:
    """The job's own report of its end.

    Attributes:
        status: how it ended; None when it reported nothing, or worked on afterwards.
        stop: time of that line; ``order`` is its position.
        is_final: whether it is an explicit status, which no later line withdraws.
        planned_minutes: after which it ended itself as it was configured to.
        runtime_seconds: of the training, by the trainer's summary.
        withdrawn_by: kind of work that came after words of success.
    """

    status: str | None = None
    stop: Stamp | None = None
    order: int = 0
    is_final: bool = False
    planned_minutes: float | None = None
    runtime_seconds: float | None = None
    withdrawn_by: str | None = None
    _suspended: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether the job reported how it ended."""
        return self.status is not None

    def succeed(self, text: str, stamp: Stamp | None, order: int) -> None:
        """Words of success, which any later work withdraws."""
        if self.is_final:
            return
        planned = _PLANNED.search(text)
        if planned is not None and planned["minutes"]:
            self.planned_minutes = float(planned["minutes"])
        runtime = _RUNTIME.search(text)
        self.runtime_seconds = float(runtime["seconds"]) if runtime else self.runtime_seconds
        self.status = "planned stop" if planned else _SUCCESS
        self.stop, self.order = stamp, order
        self.withdrawn_by = self._suspended = None

    def finish(self, status: str, stamp: Stamp | None, order: int) -> None:
        """An explicit final status, such as MLPerf's; the first one stands."""
        if not self.is_final or self.status != "mlperf success":
            named = status or "reported no status"
            self.status = "mlperf success" if status == _SUCCESS else named
            self.stop, self.order, self.is_final = stamp, order, True

    def work(self, name: str) -> None:
        """Work goes on; ``name`` as in ``Milestones.work``, or ``checkpoint_saved``."""
        if self.is_final:
            return
        if self._suspended is not None and _CLOSING.get(self._suspended) == name:
            self.status, self._suspended, self.withdrawn_by = _SUCCESS, None, None
        elif self.status is not None and name != "checkpoint_saved":
            self._suspended = name if name in _CLOSING else None
            self.status, self.withdrawn_by = None, name
        elif self._suspended is not None and name != self._suspended:
            self._suspended = None
