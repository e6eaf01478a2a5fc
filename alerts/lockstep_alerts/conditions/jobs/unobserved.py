"""A slow rank of the job would not show: nobody waits, or most time is in no marked phase."""

from lockstep_alerts.conditions.condition import LIVE_WINDOW, Condition
from lockstep_alerts.conditions.joins import select_training_jobs, several_clocks
from lockstep_catalogue import recorded
from lockstep_catalogue.promql import select
from lockstep_catalogue.windows import ScrapeWindows


class Unobserved(Condition):
    """Jobs of which a slow rank would not show, by the limits that the reports share."""

    DETECTED_AFTER = LIVE_WINDOW

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of the step in the phase that may hide a slow rank, which the labels name."""
        # Ranks that are timed by different clocks are not compared: that is said, and not silent.
        return f"({select(recorded.UNOBSERVED)} or {several_clocks()}) and {select_training_jobs()}"
