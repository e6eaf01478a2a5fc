"""A pipeline stage has more work than the median stage, or more than it had itself."""

from lockstep_alerts.conditions.condition import LIVE_WINDOW, Condition
from lockstep_alerts.conditions.evidence import listing
from lockstep_alerts.conditions.joins import (
    JOB_LABELS,
    has_stood,
    phase_of_most_excess,
    select_training_jobs,
)
from lockstep_alerts.reading.quantities import Ratio
from lockstep_catalogue import recorded
from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE, PHASE, PP, RANK
from lockstep_catalogue.promql import by, eq, names, select
from lockstep_catalogue.windows import ScrapeWindows

_STAGE_LABELS = (*JOB_LABELS, PP)
_STAGE_JOIN = f"on ({names(*_STAGE_LABELS)})"
# The median of half an hour is the stage's own usual work; it must have run for five minutes.
_HISTORY_SECONDS = 1800
_MIN_HISTORY_SECONDS = 300


class StageUneven(Condition):
    """A stage has more work than the median stage: the split of the layers, and no rank's fault.

    Attributes:
        above_ratio: its excess as a share of the mean step.
    """

    DETECTED_AFTER = LIVE_WINDOW

    above_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Excess ratio of each heavy stage, with the phase in the labels."""
        return f"""(
  {select(recorded.STAGE_EXCESS_RATIO)} > {self.above_ratio:g}
  and {select_training_jobs()}
)
* {_STAGE_JOIN} group_left ({PHASE.name})
  {phase_of_most_excess(windows, recorded.STAGE_EXCESS, *_STAGE_LABELS)}"""

    def evidence(self) -> str:
        """Asks Prometheus which ranks have the stage."""
        of_stage = select(
            recorded.PLACEMENT, eq(CLUSTER, "%[1]s"), eq(JOB_ID, "%[2]s"), eq(PP, "%[3]s")
        )
        item = "rank {{ $series.Labels.rank }} of {{ $series.Labels.node }}"
        return listing(of_stage, item, CLUSTER, JOB_ID, PP, before="The stage runs on ")


class StageSlowed(Condition):
    """A stage without replicas has become heavier than it was, and the other stages have not.

    Attributes:
        above_ratio: growth of its excess as a share of the mean step.
    """

    DETECTED_AFTER = LIVE_WINDOW

    above_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Growth of the excess ratio of each stage of one rank, which is in the labels."""
        ratio = select(recorded.STAGE_EXCESS_RATIO)
        usual = f"quantile_over_time(0.5, {ratio}[{windows.cover(_HISTORY_SECONDS)}])"
        before = f"{ratio} offset {windows.cover(_MIN_HISTORY_SECONDS)}"
        placement = select(recorded.PLACEMENT)
        # A join that meets a stage of several ranks, of any job, would fail the rule for all jobs.
        single = f"{placement} and {_STAGE_JOIN} {by('count', placement, *_STAGE_LABELS)} == 1"
        return f"""(
  ({ratio} - {usual}) > {self.above_ratio:g}
  and {_STAGE_JOIN} {before}
  and {select_training_jobs()}
  unless {has_stood(windows)}
)
* {_STAGE_JOIN} group_left ({PHASE.name})
  {phase_of_most_excess(windows, recorded.STAGE_EXCESS, *_STAGE_LABELS)}
* {_STAGE_JOIN} group_left ({names(RANK, NODE)})
  ({single})"""
