"""The sentences that a verdict stands on."""

import numpy as np

from lockstep_reports.recording.steps import Steps
from lockstep_reports.score import Scores
from lockstep_reports.search.chance import tail_bound
from lockstep_reports.search.episodes import Stretch, Thresholds
from lockstep_reports.verdict.verdict import Episode, whom
from lockstep_reports.wording import duration, percent, plural

_LEAST_CHANCE_SAID = 1e-12
_NAMED_RANKS = 8


def why_episode(episode: Episode, stretch: Stretch, units: int) -> tuple[str, ...]:
    """Why an episode is one."""
    hits, told = stretch.came_last, stretch.told
    chance = tail_bound(hits, told, 1 / units)
    work = "work outside the marked phases" if episode.phase == "other" else episode.phase
    phase = (
        f"Its {work} took {duration(episode.phase_seconds or 0)} longer than the median "
        "of the other ranks."
        if episode.phase
        else "No phase of its own work explains it."
    )
    now_and_then = "" if stretch.steady else " It comes and goes: it is intermittent."
    return (
        (
            f"{whom(episode)} came last in {hits} of {told} steps; chance gives "
            f"{percent(1 / units)} (probability of so many or more {_at_most(chance)})."
        ),
        (
            f"It kept all others waiting {duration(episode.late_seconds)} a step (median of the "
            f"late ones); from {duration(stretch.threshold)} on it counts."
        ),
        phase,
        f"It was so in {stretch.late} of {told} steps, from step {episode.start_step} to "
        f"{episode.end_step}"
        + (", the last one recorded." if episode.ongoing else ".")
        + now_and_then,
    )


def _at_most(chance: float) -> str:
    least = _LEAST_CHANCE_SAID
    return f"under {least:.0e}" if chance < least else f"at most {chance:.1g}"


def why_unknown(steps: Steps, thresholds: Thresholds) -> str | None:
    """Why the recording is too little to judge; None when it is enough."""
    if len(steps.members) <= 1:
        return "Only one rank was read; lateness needs another rank to compare with."
    together = int(np.count_nonzero(np.count_nonzero(~np.isnan(steps.sync), axis=0) > 1))
    if together >= thresholds.min_steps:
        return None
    return (
        f"{plural(together, 'step')} with a synchronisation of two ranks or more "
        f"{'is' if together == 1 else 'are'} recorded; {thresholds.min_steps} are needed."
    )


def why_nobody(
    steps: Steps, scores: Scores, least: float, thresholds: Thresholds
) -> tuple[str, ...]:
    """Why nobody is accused."""
    often = int(np.argmax(np.nan_to_num(scores.last_share)))
    least_share = percent(thresholds.min_effect_ratio)
    return (
        (
            f"No rank kept all others waiting by more than {duration(least)} ({least_share} "
            "of the median step) more often than chance explains."
        ),
        (
            f"Last most often: rank {steps.ranks[often]}, in "
            f"{percent(float(scores.last_share[often]))} of the steps; by chance "
            f"{percent(1 / len(steps.members))}."
        ),
        (
            "Thresholds aim at naming somebody, where nobody is slow, in at most one run in "
            f"{1 / thresholds.false_alarm_probability:,.0f}."
        ),
    )


def why_brief(late: list[tuple[int, ...]], lost_ratio: float) -> tuple[str, ...]:
    """What was late, but too briefly to accuse anybody.

    Args:
        late: the ranks of each stretch.
        lost_ratio: share of the run's time that all stretches lost.
    """
    if not late:
        return ()
    ranks = sorted({rank for ranks in late for rank in ranks})
    some = ", ".join(map(str, ranks[:_NAMED_RANKS])) + (
        ", ..." if len(ranks) > _NAMED_RANKS else ""
    )
    return (
        (
            f"{plural(len(late), 'time')} a rank was late for a few steps ("
            f"{'rank' if len(ranks) == 1 else 'ranks'} {some}); that lost {percent(lost_ratio)} "
            "of the run, and so little accuses nobody."
        ),
    )


def missing_ranks(steps: Steps) -> tuple[str, ...]:
    """What could not be judged for want of pages."""
    missing = steps.missing_ranks
    if not missing:
        return ()
    more = ", ..." if len(missing) > _NAMED_RANKS else ""
    some = ", ".join(map(str, missing[:_NAMED_RANKS])) + more
    return (
        (
            f"{plural(len(missing), 'rank')} of {steps.world_size} left no readable page ({some}); "
            "what they did is not judged."
        ),
    )
