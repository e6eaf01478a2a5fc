"""The alert that notifies nobody: it proves the way from a rule to a person."""

from lockstep_alerts.conditions.condition import Condition
from lockstep_catalogue.windows import ScrapeWindows


class AlwaysFiring(Condition):
    """The dead man's switch: it fires always, and its silence says that the pipeline is broken."""

    def expression(self, windows: ScrapeWindows) -> str:
        """One, without labels."""
        return "vector(1)"
