"""One rank has much more to do than the others, by what its loop reports: the workload."""

from dataclasses import dataclass
from typing import Annotated

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.joins import JOB_LABELS, load_excess
from lockstep_alerts.conditions.synthetic import JOB, Timing, loads
from lockstep_alerts.reading.quantities import number
from lockstep_catalogue.windows import ScrapeWindows


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSkew(Condition):
    """Jobs whose heaviest rank has a load of more than ``above_ratio`` above the median.

    Attributes:
        above_ratio: load of the heaviest rank over the median, less one.
    """

    DETECTED_AFTER = 10

    above_ratio: Annotated[float, number(0, 100)]

    def expression(self, windows: ScrapeWindows) -> str:
        """By how much the heaviest rank of each job is above the median, by kind of load."""
        return f"{load_excess(*JOB_LABELS)} > {self.above_ratio:g}"

    def cases(self, timing: Timing) -> list[Case]:
        above, below = 1.1 * (1 + self.above_ratio), 1 + 0.5 * self.above_ratio
        lasting = timing.fires_by_seconds
        return [
            Case("one rank has more tokens", loads(above, lasting), {**JOB, "load": "tokens"}),
            Case("by less than that", loads(below, lasting)),
            Case("one sequence is long", loads(above, lasting, "longest_sequence")),
        ]
