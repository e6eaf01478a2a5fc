"""Conditions on jobs: ranks and stages that hold others back, stalls, lost numbers."""

from typing import Annotated

from lockstep_alerts.conditions import joins
from lockstep_alerts.conditions.condition import LIVE_WINDOW, Condition
from lockstep_alerts.conditions.evidence import listing, naming, naming_pod
from lockstep_alerts.conditions.joins import (
    JOB_JOIN,
    JOB_LABELS,
    NODE_JOIN,
    NODE_LABELS,
    has_paused,
    has_stood,
    num_ranks,
    phase_of_most_excess,
    select_jobs_without_pages,
    select_training_jobs,
    several_clocks,
)
from lockstep_alerts.reading.quantities import Ratio, Window, whole_number
from lockstep_catalogue import recorded, training
from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE, PHASE, PP, RANK
from lockstep_catalogue.promql import by, eq, increase, names, one_of, select
from lockstep_catalogue.vocabulary import PAUSE_PHASES
from lockstep_catalogue.windows import ScrapeWindows
from lockstep_outcomes.progress.hangs import HANG_TIMEOUT_SECONDS


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


_MAX_NAMED_RANKS = 16  # a page is read on a telephone
_STEPS, _LONG_STEPS = 20, 1.5
_LONGEST_SILENCE_SECONDS = 390  # collectives give up after ten minutes; people need the rest
_STEP_REMEMBERED = "1h"
_JUDGED_EVERY_SECONDS = 10  # tier of the agent's collector
_ELSEWHERE = tuple(phase for phase in training.HANG_PHASE.values if phase != "sync")


class Stalled(Condition):
    """Jobs of which a rank hangs, by the time-outs of the job or of the agent."""

    DETECTED_AFTER = round(HANG_TIMEOUT_SECONDS) + _JUDGED_EVERY_SECONDS

    def expression(self, windows: ScrapeWindows) -> str:
        """Seconds without progress of the first rank of each job that hangs."""
        hung_elsewhere = " or ".join(
            by("group", select(metric, one_of(training.HANG_PHASE, *_ELSEWHERE)), *JOB_LABELS)
            for metric in (training.HANG_FIRST, training.HANG_MISSING)
        )
        # Ranks that only wait may be waiting for a checkpoint that is written on another node. A
        # rank that hangs in it, or before it, does not excuse them.
        judged = by("max", select(training.HANG_FIRST), *JOB_LABELS)
        return f"""((
{judged}
unless {JOB_JOIN} (
  {num_ranks(*PAUSE_PHASES)} > 0
  unless {JOB_JOIN} ({hung_elsewhere})
))
or (
  {self._stands(windows)}
))
unless {select_jobs_without_pages()}"""

    def _stands(self, windows: ScrapeWindows) -> str:
        """Jobs that stand although their agents have not judged so.

        Twenty long steps last longer than the time-out of the job's collectives, which would end it
        before anybody knows; and agents of old judge nothing.
        """
        # The mean step of a job that stands is in no window any more.
        mean = f"last_over_time({select(recorded.STEP_MEAN)}[{_STEP_REMEMBERED}])"
        least = f"clamp({_STEPS} * {mean}, {HANG_TIMEOUT_SECONDS:g}, {_LONGEST_SILENCE_SECONDS})"
        standing = select(recorded.STANDING)
        return (
            f"{standing} > {JOB_JOIN} ({least})\n"
            f"  and {standing} > {JOB_JOIN} ({_LONG_STEPS:g} * {mean})\n"
            f"  and {JOB_JOIN} {num_ranks('training')} > 0\n"
            f"  unless {has_paused(windows)}"
        )

    def evidence(self) -> str:
        """Asks Prometheus which ranks the others wait for, or which stopped first."""
        missing = select(training.HANG_MISSING, *_JOB_MATCHERS)
        first = select(training.HANG_FIRST, *_JOB_MATCHERS)
        waited = _naming(missing, "The others wait for ")
        stopped = _naming(first, "No rank stands apart. First to stop: ")
        return f"{waited}.{{{{ else }}}}{stopped}.{{{{ end }}}}{{{{ end }}}}"


_JOB_MATCHERS = (eq(CLUSTER, "%[1]s"), eq(JOB_ID, "%[2]s"))
_POD = naming_pod("$series.Labels", " (pod ", ")")
_RANK = (
    f"rank {{{{ $series.Labels.rank }}}} on {{{{ $series.Labels.node }}}}{_POD}"
    " in {{ $series.Labels.hang_phase }}"
    f"{{{{ with $series.Labels.{training.HANG_EVIDENCE.name} }}}}"
    ' ({{ reReplaceAll "_" " " . }}){{ end }}'
)


def _naming(ranks: str, before: str) -> str:
    return naming(ranks, _RANK, CLUSTER, JOB_ID, before=before, most=_MAX_NAMED_RANKS)


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


class Unobserved(Condition):
    """Jobs of which a slow rank would not show, by the limits that the reports share."""

    DETECTED_AFTER = LIVE_WINDOW

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of the step in the phase that may hide a slow rank, which the labels name."""
        # Ranks that are timed by different clocks are not compared: that is said, and not silent.
        return f"({select(recorded.UNOBSERVED)} or {several_clocks()}) and {select_training_jobs()}"
