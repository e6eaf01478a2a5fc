"""One rank has much more to do than the others, by what its loop reports: the workload."""

from typing import Annotated

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.joins import JOB_LABELS, load_excess
from lockstep_alerts.reading.quantities import number
from lockstep_catalogue.windows import ScrapeWindows


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
