"""Steps have a loss or gradient norm that is NaN or infinite, and it lasts.

Loss scaling makes overflows on purpose: a few while it finds its scale, and one in thousands of
steps for the life of the job. So a share of the steps must be lost, and at several scrapes.
"""

from typing import Annotated

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.joins import JOB_LABELS, NODE_JOIN, NODE_LABELS
from lockstep_alerts.reading.quantities import Ratio, Window, whole_number
from lockstep_catalogue import training
from lockstep_catalogue.promql import by, increase, select
from lockstep_catalogue.windows import ScrapeWindows

_BRIEF_SECONDS = 60


class NotFinite(Condition):
    """Jobs of which a share of the steps is not finite, seen at several scrapes.

    Attributes:
        window: how far back a step counts where steps are long.
        above_ratio: steps that are not finite, of a node's steps.
        least_scrapes: at which the count has grown.
    """

    window: Window
    above_ratio: Ratio = 0.005
    least_scrapes: Annotated[int, whole_number(0, 20)] = 5

    def expression(self, windows: ScrapeWindows) -> str:
        """Steps of each job that were not finite within the window, over all ranks."""
        scrapes_seconds = (self.least_scrapes + 3) * windows.scrape_seconds
        brief = windows.cover(max(_BRIEF_SECONDS, scrapes_seconds))
        return by(
            "sum",
            "\nor\n".join(
                self._lasting(window) for window in (brief, windows.cover(self.window.seconds))
            ),
            *JOB_LABELS,
        )

    def _lasting(self, window: str) -> str:
        counted = select(training.NONFINITE_STEPS)
        seen = f"changes({counted}[{window}]) >= {self.least_scrapes}"
        lost = by("sum", increase(training.NONFINITE_STEPS, window), *NODE_LABELS)
        steps = by("sum", increase(training.STEPS, window), *NODE_LABELS)
        often = by("group", seen, *NODE_LABELS)
        return f"{lost} > {NODE_JOIN} ({self.above_ratio:g} * {steps}) and {NODE_JOIN} {often}"

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """As many scrapes as have to see it, one of which may see two steps."""
        return self.least_scrapes * windows.scrape_seconds
