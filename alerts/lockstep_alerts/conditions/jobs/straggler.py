"""A rank, or all ranks of a node, are later than their group by more than a share of the step."""

from lockstep_alerts.conditions.condition import LIVE_WINDOW, Condition
from lockstep_alerts.conditions.joins import (
    NODE_LABELS,
    ON_NODE,
    ON_RANK,
    RANK_LABELS,
    explained_by_load,
    explained_by_own_work,
    has_several_clocks,
    has_stood,
    node_is_late,
    phase_of_most_excess,
    select_training_jobs,
)
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
  and {ON_RANK} ({explained_by_own_work(self.above_ratio, RANK_LABELS)})
  and {select_training_jobs()}
  unless {has_several_clocks()}
  unless {has_stood(windows)}
  unless {ON_NODE} ({node_is_late(self.above_ratio)})
  unless {explained_by_load()}
)
* {ON_RANK} group_left ({PHASE.name})
  {phase_of_most_excess(windows, recorded.EXCESS, *RANK_LABELS)}"""


class StragglerNode(_Late):
    """All ranks of a node are late in their groups."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Highest lateness ratio of each late node, with the phase in the labels."""
        latest = by("max", select(recorded.LATENESS_RATIO), *NODE_LABELS)
        return f"""(
  {latest} > {self.above_ratio:g}
  and {ON_NODE} ({node_is_late(self.above_ratio)})
  and {ON_NODE} ({explained_by_own_work(self.above_ratio, NODE_LABELS)})
  and {select_training_jobs()}
  unless {has_several_clocks()}
  unless {has_stood(windows)}
)
* {ON_NODE} group_left ({PHASE.name})
  {phase_of_most_excess(windows, recorded.EXCESS, *NODE_LABELS)}"""
