"""A pipeline stage has more work than the median stage, or more than it had itself."""

from collections.abc import Mapping
from dataclasses import dataclass

from lockstep_alerts.conditions.condition import LIVE_WINDOW, Case, Condition
from lockstep_alerts.conditions.evidence import naming
from lockstep_alerts.conditions.joins import (
    JOB_LABELS,
    has_stood,
    phase_of_most_excess,
    select_training_jobs,
)
from lockstep_alerts.conditions.synthetic import (
    HEALTHY,
    JOB,
    STAGES,
    Samples,
    Stretch,
    Timing,
    growing,
    ranks_late,
    samples,
    steady,
    training_job,
)
from lockstep_alerts.reading.quantities import Ratio
from lockstep_catalogue import recorded, training
from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE, PHASE, PP, RANK
from lockstep_catalogue.promql import by, eq, names, select
from lockstep_catalogue.windows import ScrapeWindows

_STAGE_LABELS = (*JOB_LABELS, PP)
_ON_STAGE = f"on ({names(*_STAGE_LABELS)})"
_SLOW_STAGE = 2
# The median of half an hour is the stage's own usual work; it must have run for five minutes.
_HISTORY_SECONDS = 1800
_MIN_HISTORY_SECONDS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
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
* {_ON_STAGE} group_left ({PHASE.name})
  {phase_of_most_excess(windows, recorded.STAGE_EXCESS, *_STAGE_LABELS)}"""

    def evidence(self) -> str:
        """Asks Prometheus which ranks have the stage."""
        of_stage = select(
            recorded.PLACEMENT, eq(CLUSTER, "%[1]s"), eq(JOB_ID, "%[2]s"), eq(PP, "%[3]s")
        )
        item = "rank {{ $series.Labels.rank }} of {{ $series.Labels.node }}"
        ranks = naming(of_stage, item, CLUSTER, JOB_ID, PP, before="The stage runs on ")
        return f"{ranks}.{{{{ end }}}}"

    def cases(self, timing: Timing) -> list[Case]:
        seconds = timing.fires_by_seconds

        def job(ratio: float) -> list[Samples]:
            extra = {_SLOW_STAGE: {"backward": _extra_seconds(ratio)}}
            return training_job(ranks_late(seconds, extra), places=STAGES)

        stage = {**JOB, "pp": str(_SLOW_STAGE), "phase": "backward"}
        return [
            Case("one stage has more work", job(1.1 * self.above_ratio), stage, seconds),
            Case("by less than that", job(0.8 * self.above_ratio), None, seconds),
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
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
        single = f"{placement} and {_ON_STAGE} {by('count', placement, *_STAGE_LABELS)} == 1"
        return f"""(
  ({ratio} - {usual}) > {self.above_ratio:g}
  and {_ON_STAGE} {before}
  and {select_training_jobs()}
  unless {has_stood(windows)}
)
* {_ON_STAGE} group_left ({PHASE.name})
  {phase_of_most_excess(windows, recorded.STAGE_EXCESS, *_STAGE_LABELS)}
* {_ON_STAGE} group_left ({names(RANK, NODE)})
  ({single})"""

    def cases(self, timing: Timing) -> list[Case]:
        extra = {_SLOW_STAGE: {"backward": _extra_seconds(1.2 * self.above_ratio)}}
        slowed = {**JOB, "pp": "2", "rank": "2", "node": "n1", "phase": "backward"}
        at = _history_seconds(timing) + timing.fires_within_seconds
        return [
            Case("one stage slows", _slowing(timing, {}, extra), slowed, at),
            Case("it was always heavier", _slowing(timing, extra, extra), None, at),
        ]


_Extra = Mapping[int, Mapping[str, float]]
"""Seconds a step by phase that each rank takes more."""


def _extra_seconds(ratio: float) -> float:
    """Seconds a step of one rank that are this share of the step that they lengthen."""
    return sum(HEALTHY.values()) * ratio / (1 - ratio)


def _history_seconds(timing: Timing) -> int:
    """Long enough to have a usual work that a new one does not move."""
    return timing.onset_seconds + _MIN_HISTORY_SECONDS + timing.fires_within_seconds


def _slowing(timing: Timing, before: _Extra, after: _Extra) -> list[Samples]:
    slowing = training_job(
        ranks_late(_history_seconds(timing), before),
        ranks_late(timing.fires_within_seconds, after),
        places=STAGES,
    )
    # Another job, whose stage has two ranks, must not spoil the join.
    seconds = _history_seconds(timing) + timing.fires_within_seconds
    other = {"instance": "n1:9400", **JOB, "job_id": "j2"}
    for rank in ("0", "1"):
        info = samples(
            training.RANK_INFO, steady(1, seconds), **other, node="n1", pp="0", rank=rank
        )
        moves = growing(Stretch(seconds, 1))
        slowing += [info, samples(training.LAST_PROGRESS, moves, **other, rank=rank)]
    return slowing
