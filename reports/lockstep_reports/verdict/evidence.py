"""The sentences that a verdict rests on."""

import numpy as np

from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.chance import tail_bound
from lockstep_reports.search.score import MIN_EFFECT_RATIO, Scores
from lockstep_reports.search.stretches import FALSE_ALARM_PROBABILITY, Stretch
from lockstep_reports.verdict.verdict import Episode, culprits
from lockstep_reports.wording import duration, list_ranks, percent, plural

_MIN_WRITTEN_CHANCE = 1e-12


def why_episode(episode: Episode, stretch: Stretch, num_units: int) -> tuple[str, ...]:
    """Why an episode is one."""
    num_last, num_known = stretch.num_last, stretch.num_known
    # Null hypothesis: each of the units comes last with the same probability in every step. No
    # correction for the search: the sentence is about this stretch, the verdict's confidence is
    # corrected.
    chance = tail_bound(num_last, num_known, 1 / num_units)
    work = "work outside the marked phases" if episode.phase == "other" else episode.phase
    phase = (
        f"Its {work} took {duration(episode.phase_seconds or 0)} longer than the median "
        "of the other ranks."
        if episode.phase
        else "No phase of its own work explains it."
    )
    intermittent = "" if stretch.is_steady else " It comes and goes: it is intermittent."
    return (
        (
            f"{culprits(episode)} came last in {num_last} of {num_known} steps; chance gives "
            f"{percent(1 / num_units)} (probability of so many or more {_write_chance(chance)})."
        ),
        (
            f"It kept all others waiting {duration(episode.late_seconds)} a step (median of the "
            f"late ones); from {duration(stretch.threshold)} on it counts."
        ),
        phase,
        f"It was so in {stretch.num_late} of {num_known} steps, from step {episode.start_step} to "
        f"{episode.end_step}"
        + (", the last one recorded." if episode.ongoing else ".")
        + intermittent,
    )


def _write_chance(chance: float) -> str:
    least = _MIN_WRITTEN_CHANCE
    return f"under {least:.0e}" if chance < least else f"at most {chance:.1g}"


def why_unknown(steps: Steps, min_steps: int) -> str | None:
    """Why the recording is too little to judge; None when it is enough."""
    if len(steps.members) <= 1:
        return "Only one rank was read; lateness needs another rank to compare with."
    num_ranks_in_sync = np.count_nonzero(~np.isnan(steps.sync), axis=0)
    num_steps = int(np.count_nonzero(num_ranks_in_sync > 1))
    if num_steps >= min_steps:
        return None
    return (
        f"{plural(num_steps, 'step')} with a synchronisation of two ranks or more "
        f"{'is' if num_steps == 1 else 'are'} recorded; {min_steps} are needed."
    )


def why_nobody(steps: Steps, scores: Scores) -> tuple[str, ...]:
    """Why nobody is named."""
    row = int(np.argmax(np.nan_to_num(scores.last_share)))
    return (
        (
            f"No rank kept all others waiting by more than {duration(scores.threshold)} "
            f"({percent(MIN_EFFECT_RATIO)} of the median step) more often than chance explains."
        ),
        (
            f"Last most often: rank {steps.ranks[row]}, in "
            f"{percent(float(scores.last_share[row]))} of the steps; by chance "
            f"{percent(1 / len(steps.members))}."
        ),
        (
            "Thresholds aim at naming somebody, where nobody is slow, in at most one run in "
            f"{1 / FALSE_ALARM_PROBABILITY:,.0f}."
        ),
    )


def why_brief(stretches: list[tuple[int, ...]], lost_ratio: float) -> tuple[str, ...]:
    """What was late, but too briefly to name anybody.

    Args:
        stretches: the ranks of each late stretch.
        lost_ratio: share of the run's time that all stretches lost.
    """
    if not stretches:
        return ()
    ranks = sorted({rank for stretch_ranks in stretches for rank in stretch_ranks})
    return (
        (
            f"{plural(len(stretches), 'time')} a rank was late for a few steps ("
            f"{'rank' if len(ranks) == 1 else 'ranks'} {list_ranks(ranks)}); that lost "
            f"{percent(lost_ratio)} of the run, and so little accuses nobody."
        ),
    )


def missing_ranks(steps: Steps, doubt: str = "what they did is not judged") -> tuple[str, ...]:
    """A sentence on the ranks without a page, with what follows from that; empty without any."""
    missing = steps.missing_ranks
    if not missing:
        return ()
    return (
        (
            f"{plural(len(missing), 'rank')} of {steps.world_size} left no readable page "
            f"({list_ranks(missing)}); {doubt}."
        ),
    )
