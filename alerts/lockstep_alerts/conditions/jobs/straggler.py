"""A rank, or all ranks of a node, are later than their group by more than a share of the step."""

from lockstep_alerts.conditions import joins
from lockstep_alerts.conditions.condition import LIVE_WINDOW, Condition
from lockstep_alerts.reading.quantities import Ratio
from lockstep_catalogue import recorded
from lockstep_catalogue.labels import PHASE
from lockstep_catalogue.promql import by, select
from lockstep_catalogue.windows import ScrapeWindows


class _Late(Condition):
    """Ranks that are late by more than ``above_ratio`` of the mean step.

    Attributes:
        above_ratio: lateness as a share of the mean step.
    """

    DETECTED_AFTER = LIVE_WINDOW

    above_ratio: Ratio


class Straggler(_Late):
    """A rank is late in its group, and not its whole node with it."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Lateness ratio of each late rank, with its node, stage and phase in the labels."""
        late = f"{select(recorded.LATENESS_RATIO)} > {self.above_ratio:g}"
        return f"""(
  {late}
  and {joins.RANK_JOIN} ({joins.explained_by_own_work(self.above_ratio, joins.RANK_LABELS)})
  and {joins.select_training_jobs()}
  unless {joins.has_several_clocks()}
  unless {joins.has_stood(windows)}
  unless {joins.NODE_JOIN} ({joins.node_is_late(self.above_ratio)})
  unless {joins.explained_by_load()}
)
* {joins.RANK_JOIN} group_left ({PHASE.name})
  {joins.phase_of_most_excess(windows, recorded.EXCESS, *joins.RANK_LABELS)}"""


class StragglerNode(_Late):
    """All ranks of a node are late in their groups."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Highest lateness ratio of each late node, with the phase in the labels."""
        latest = by("max", select(recorded.LATENESS_RATIO), *joins.NODE_LABELS)
        return f"""(
  {latest} > {self.above_ratio:g}
  and {joins.NODE_JOIN} ({joins.node_is_late(self.above_ratio)})
  and {joins.NODE_JOIN} ({joins.explained_by_own_work(self.above_ratio, joins.NODE_LABELS)})
  and {joins.select_training_jobs()}
  unless {joins.has_several_clocks()}
  unless {joins.has_stood(windows)}
)
* {joins.NODE_JOIN} group_left ({PHASE.name})
  {joins.phase_of_most_excess(windows, recorded.EXCESS, *joins.NODE_LABELS)}"""
