"""Ranks of a job hang, by the agent's judgement: the rule of ``lockstep_outcomes.progress``.

The agent of a node knows the time-outs of the job, the median step and which of its ranks are in a
planned pause. What it cannot know is decided here: whether ranks of other nodes are in one.
"""

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.evidence import naming, naming_pod
from lockstep_alerts.conditions.joins import (
    JOB_JOIN,
    JOB_LABELS,
    has_paused,
    num_ranks,
    select_jobs_without_pages,
)
from lockstep_catalogue import recorded, training
from lockstep_catalogue.labels import CLUSTER, JOB_ID, OWN_WORK_PHASES
from lockstep_catalogue.promql import by, eq, one_of, select
from lockstep_catalogue.vocabulary import PAUSE_PHASES
from lockstep_catalogue.windows import ScrapeWindows
from lockstep_outcomes.progress.hangs import HANG_TIMEOUT_SECONDS

_MAX_NAMED_RANKS = 16  # a page is read on a telephone
_STEPS, _LONG_STEPS = 20, 1.5
_BEFORE_TIMEOUT_SECONDS = 390  # collectives give up after ten minutes; people need the rest
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
        least = f"clamp({_STEPS} * {mean}, {HANG_TIMEOUT_SECONDS:g}, {_BEFORE_TIMEOUT_SECONDS})"
        standing = select(recorded.STANDING)
        return (
            f"{standing} > {JOB_JOIN} ({least})\n"
            f"  and {standing} > {JOB_JOIN} ({_LONG_STEPS:g} * {mean})\n"
            f"  and {JOB_JOIN} {num_ranks('training')} > 0\n"
            f"  unless {has_paused(windows)}"
        )

    def evidence(self) -> str:
        """Asks Prometheus which ranks the others wait for, or which stopped first."""
        at_work = select(training.HANG_FIRST, *_JOB_MATCHERS, one_of(_PHASE, *OWN_WORK_PHASES))
        missing = f"{select(training.HANG_MISSING, *_JOB_MATCHERS)} or {at_work}"
        first = select(training.HANG_FIRST, *_JOB_MATCHERS)
        waited = _naming(missing, "The others wait for ")
        stopped = _naming(first, "No rank stands apart. First to stop: ")
        return f"{waited}.{{{{ else }}}}{stopped}.{{{{ end }}}}{{{{ end }}}}"


_PHASE = training.HANG_PHASE
_JOB_MATCHERS = (eq(CLUSTER, "%[1]s"), eq(JOB_ID, "%[2]s"))
_POD = naming_pod("$series.Labels", " (pod ", ")")
_RANK = (
    f"rank {{{{ $series.Labels.rank }}}} on {{{{ $series.Labels.node }}}}{_POD}"
    " in {{ $series.Labels.hang_phase }}"
)


def _naming(ranks: str, before: str) -> str:
    return naming(ranks, _RANK, CLUSTER, JOB_ID, before=before, most=_MAX_NAMED_RANKS)
