"""The sentences that a verdict rests on, and why a recording cannot tell that nobody was slow.

"Nobody" is a claim, and it needs evidence: a late rank shows only where somebody's waiting for it
was recorded, or its own work apart from that of the others. Where neither could have been, the
verdict is unknown.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lockstep_catalogue.limits import MAX_OTHER_RATIO, MIN_WAIT_RATIO
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.account import MAY_WAIT, Account
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.candidates import Candidate
from lockstep_reports.search.chance import tail_bound
from lockstep_reports.search.late import FALSE_ALARM_PROBABILITY, Stretch
from lockstep_reports.search.score import MIN_EFFECT_RATIO, Scores, last_share, slow_phase
from lockstep_reports.verdict.losses import HELD_CAUSES, Charges
from lockstep_reports.verdict.verdict import MAX_CONFIDENCE, MIN_SHARE, Episode, slow_name
from lockstep_reports.wording import duration, list_ranks, percent, plural

_MIN_WRITTEN_CHANCE, _MAX_WRITTEN_CHANCE = 1e-12, 0.05
# Rows of one rank that are missing among the others', before they may hide an episode.
_MAX_MISSING_RATIO, _MIN_MISSING_ROWS = 0.1, 3
_LIKELY_SHARE = 0.7  # of the likeliest phase that hides waits


def why_episode(episode: Episode, stretch: Stretch, num_units: int) -> tuple[str, ...]:
    """Why an episode is one."""
    num_last, num_known = stretch.num_last, stretch.num_known
    # Null hypothesis: each of the units comes last with the same probability in every step. No
    # correction for the search: the sentence is about this stretch, the verdict's confidence is
    # corrected.
    chance = tail_bound(num_last, num_known, 1 / num_units)
    work = "work outside the marked phases" if episode.phase == "other" else episode.phase
    where = "No phase of its own work explains it."
    if episode.phase:
        longer = duration(episode.phase_seconds or 0)
        where = f"Its {work} took {longer} longer than the median of the other ranks."
    intermittent = "" if stretch.is_steady else " It comes and goes: it is intermittent."
    subject, came_last = slow_name(episode), list[str]()
    # A process that is stopped now and then comes last no more often than by chance.
    if chance <= _MAX_WRITTEN_CHANCE:
        came_last.append(
            f"{subject} came last in {num_last} of {num_known} steps; chance gives "
            f"{percent(1 / num_units)} (probability of so many or more {_write_chance(chance)})."
        )
        subject = "It"
    return (
        *came_last,
        (
            f"{subject} kept all others waiting {duration(episode.late_seconds)} a step (median of "
            f"the late ones); from {duration(stretch.threshold)} on it counts."
        ),
        where,
        f"It was so in {stretch.num_late} of {num_known} steps, from step {episode.start_step} to "
        f"{episode.end_step}"
        + (", the last one recorded." if episode.ongoing else ".")
        + intermittent,
    )


def _write_chance(chance: float) -> str:
    least = _MIN_WRITTEN_CHANCE
    return f"under {least:.0e}" if chance < least else f"at most {chance:.1g}"


def why_unknown(steps: Steps, scores: Scores, min_steps: int) -> str | None:
    """Why the recording is too little to judge; None when it is enough."""
    if len(steps.members) <= 1:
        return "Only one rank was read; lateness needs another rank to compare with."
    num_ranks_in_sync = np.count_nonzero(~np.isnan(scores.waits), axis=0)
    num_steps = int(np.count_nonzero(num_ranks_in_sync > 1))
    if num_steps >= min_steps:
        return None
    return (
        f"{plural(num_steps, 'step')} with a synchronisation of two ranks or more "
        f"{'is' if num_steps == 1 else 'are'} recorded; {min_steps} are needed."
    )


def why_nobody(steps: Steps, scores: Scores, late_seconds: float) -> tuple[str, ...]:
    """Why nobody is named, where episodes of late ranks lost so little of the run."""
    row = int(np.argmax(np.nan_to_num(scores.last_share)))
    return (
        (
            f"No rank kept all others waiting by more than {duration(scores.threshold)} "
            f"({percent(MIN_EFFECT_RATIO)} of the median step) more often than chance explains."
        )
        if not late_seconds
        else (
            f"Ranks that were late lost {duration(late_seconds)}, under {percent(MIN_SHARE)} of "
            "the run; so little names nobody."
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
    ranks = sorted({rank for stretch_ranks in stretches for rank in stretch_ranks})
    sentence = (
        f"{plural(len(stretches), 'time')} a rank was late for a few steps ("
        f"{'rank' if len(ranks) == 1 else 'ranks'} {list_ranks(ranks)}); that lost "
        f"{percent(lost_ratio)} of the run, and so little names nobody."
    )
    return (sentence,) if stretches else ()


def missing_ranks(steps: Steps, doubt: str = "what they did is not judged") -> tuple[str, ...]:
    """A sentence on the ranks without a page, with what follows from that; empty without any."""
    missing = steps.missing_ranks
    sentence = (
        f"{plural(len(missing), 'rank')} of {steps.world_size} left no readable page "
        f"({list_ranks(missing)}); {doubt}."
    )
    return (sentence,) if missing else ()


def why_blind(steps: Steps, scores: Scores) -> tuple[str, ...]:
    """A sentence for each reason why a slow rank might not show; empty where it would."""
    reasons = (
        _explain_missing_waits(steps, scores),
        _unclaimed_time(steps, scores),
        _explain_host_times(steps),
        *missing_ranks(steps, "any of them may be the slow one"),
        _missing_rows(steps),
    )
    return tuple(reason for reason in reasons if reason is not None)


def _explain_missing_waits(steps: Steps, scores: Scores) -> str | None:
    longest = nan_stats.number(nan_stats.highest(nan_stats.median(steps.sync, axis=1), axis=0))
    if longest is None or longest >= MIN_WAIT_RATIO * scores.median_step_seconds:
        return None
    return (
        f"No rank waited for the others for more than {duration(longest)} a step, so the waiting "
        f"of this loop is not recorded or hidden in {_name_hiding_phase(scores.account)}, and a "
        'late rank would not show. Put `with monitor.phase("sync"):` around what waits in there.'
    )


def _name_hiding_phase(account: Account) -> str:
    """The phase that is shorter on the ranks that have more other work to do, as waits are.

    Of two ranks either may wait for the other's work, and of noise alone too: both are named.
    """
    values = {name: account.own[name] for name in MAY_WAIT}
    values["other"] = values["other"] + account.unknown
    busy = account.own_work + account.unknown
    hidden = {}
    for name, seconds in values.items():
        own, rest = (v - nan_stats.median(v, axis=0) for v in (seconds, busy - seconds))
        hidden[name] = float(np.nansum(np.maximum(-own, 0) * np.maximum(rest, 0)))
    likely = [name for name in hidden if hidden[name] >= _LIKELY_SHARE * max(hidden.values())]
    return " or ".join(likely).replace("other", "the work outside the marked phases")


def _unclaimed_time(steps: Steps, scores: Scores) -> str | None:
    other = nan_stats.median_number(steps.phases["other"]) or 0.0
    ratio = other / scores.median_step_seconds if scores.median_step_seconds else 0.0
    if not ratio > MAX_OTHER_RATIO:
        return None
    return (
        f"{percent(ratio)} of a step lies in no marked phase; waiting in there is taken for work. "
        'Put `with monitor.phase("sync"):` around what waits for other ranks there.'
    )


def _explain_host_times(steps: Steps) -> str | None:
    if steps.by_device is None:
        return None
    has_device = np.array([bool(member.gpu_uuid) for member in steps.members])
    by_host = has_device & (nan_stats.median(steps.by_device, axis=1) < 1)
    if not by_host.any():
        return None
    return (
        f"{plural(int(by_host.sum()), 'rank')} with a GPU recorded times of the host, which runs "
        "ahead of the device: a slow GPU need not show in them."
    )


def _missing_rows(steps: Steps) -> str | None:
    # A rank that has ended its loop while others go on, as with uneven inputs, misses no step.
    ends = [m.last_step if m.phase == "done" else None for m in steps.members]
    has_ended = [steps.numbers > (np.inf if end is None else end) for end in ends]
    num_missing = (np.isnan(steps.seconds) & ~np.array(has_ended)).sum(axis=1)
    few = max(_MIN_MISSING_ROWS, _MAX_MISSING_RATIO * len(steps.numbers))
    rows = np.flatnonzero(num_missing > few)
    if not len(rows):
        return None
    worst = int(np.argmax(num_missing))
    return (
        f"{plural(len(rows), 'rank')} left no row of many steps (rank {steps.ranks[worst]}: "
        f"{num_missing[worst]:,} of {len(steps.numbers):,} are missing)."
    )


# Steps that tell how long one was before. A smaller slowdown takes many steps to use the batches
# up, and how many is then mostly noise.
_USUAL_STEPS = 50
_MIN_LONGER = 0.03


def with_fetched_ahead(steps: Steps, episode: Episode) -> Episode:
    """The episode from the step in which its loader's workers fell behind.

    Where workers bring a batch in w and a step takes s < w, they fall behind by 1 - s / w of a
    batch in each step. The episode's steps take w. Of the batches ahead each worker has one in the
    making, of which s / w is missing on average when the loop asks for it.
    """
    inside = [member for member in steps.members if member.rank in episode.ranks]
    ahead, workers = max((member.batches_ahead, member.loader_workers) for member in inside)
    first = episode.columns.start
    if episode.phase != "data" or not ahead or first == 0:
        return episode
    seconds = nan_stats.median(steps.seconds, axis=0)
    # Means: workers that began together bring their batches together, one step in so many waits.
    before = float(np.nanmean(seconds[max(0, first - _USUAL_STEPS) : first]))
    during = float(np.nanmean(seconds[episode.columns]))
    if not during >= (1 + _MIN_LONGER) * before > 0:
        return episode
    ratio = before / during
    num_used = min(first, max(0, round((ahead - workers * ratio) / (1 - ratio))))
    start = first - num_used
    why = (
        f"Its loader's workers fetch up to {ahead:,} batches ahead: "
        f"they fell behind from about step {steps.numbers[start]} on, and what they had fetched "
        f"lasted to step {episode.start_step}."
    )
    return replace(
        episode,
        start_step=int(steps.numbers[start]),
        columns=slice(start, episode.columns.stop),
        lost_by_step=np.concatenate([np.zeros(num_used), episode.lost_by_step]),
        evidence=(*episode.evidence, why),
    )


def episode_of(steps: Steps, scores: Scores, candidate: Candidate) -> Episode:
    """The episode of a candidate."""
    stretch, rows = candidate.stretch, list(candidate.rows)
    late_seconds = float(nan_stats.median(candidate.margin[candidate.late]))
    late_columns = np.arange(stretch.first, stretch.last + 1)[candidate.late]
    # Nobody knows into which phase a wait for a core fell.
    phases = scores.account.own
    if scores.is_crowded:
        phases = {name: steps.phases[name] for name in phases}
    phase, phase_seconds = slow_phase(phases, rows, late_columns, late_seconds)
    has_group = candidate.units.kind not in {"rank", "ranks"}
    episode = Episode(
        start_step=int(steps.numbers[stretch.first]),
        end_step=int(steps.numbers[stretch.last]),
        columns=stretch.columns,
        ongoing=stretch.last >= len(steps.numbers) - 2,
        ranks=tuple(steps.ranks[row] for row in rows),
        group=candidate.units.names[stretch.unit] if has_group else None,
        phase=phase,
        phase_seconds=phase_seconds,
        late_seconds=late_seconds,
        lost_by_step=np.nan_to_num(candidate.cost),
        last_share=float(last_share(candidate.margin[None])[0]),
        confidence=min(MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(),
        group_is_node=candidate.units.kind == "node",
    )
    num_units = max(2, len(candidate.units.names))
    episode = replace(episode, evidence=why_episode(episode, stretch, num_units))
    return with_fetched_ahead(steps, episode)


# Of the stop by which half of the time is reached: far shorter ones are of something else.
_LEAST_RATIO = 0.25
# A gap of so many median ones is one of 1,000 where stops come at a steady rate.
_GAPS_OF_MEDIAN = 10.0
_MAX_SHARE_OF_RANKS = 0.5  # more than these are held in turns
_DOINGS = {
    "stopped": (
        "The process of rank {} stood still in {}, for {} in all, from step {} to {}: none of its "
        "threads had a core, and none waited for one."
    ),
    "collector": "Rank {} paused to collect garbage in {}, for {} in all, from step {} to {}.",
}


def held_episodes(
    steps: Steps, scores: Scores, charges: Charges, window_steps: int
) -> Iterator[Episode]:
    """Those of a few ranks that were stopped or collected garbage, again and again or for long.

    Pages say for how long, so chance has no part in it. From ``window_steps`` pauses on none is
    brief, and a brief one that cost little is left out. Where more than half of the ranks are held,
    they are in turns.
    """
    cheap_seconds = MIN_EFFECT_RATIO * float(np.nansum(scores.step_seconds))
    for cause in HELD_CAUSES:
        if cause not in charges.names:
            continue
        part = charges.select(charges.causes == charges.names.index(cause))
        by_rank = np.bincount(part.rows, weights=part.costs, minlength=len(steps.members))
        dear = np.flatnonzero((by_rank > 0) & (by_rank >= _LEAST_RATIO * by_rank.max(initial=0)))
        if len(dear) > _MAX_SHARE_OF_RANKS * len(steps.members):
            continue
        for row in dear.tolist():
            mine = part.select(part.rows == row)
            cost: Matrix = np.zeros(len(steps.numbers))
            np.add.at(cost, mine.columns, mine.costs)
            held = np.nan_to_num(scores.account.host[cause][row])
            for columns in _split_at_gaps(steps, row, _alike(held)):
                inside = cost[columns[0] : columns[-1] + 1]
                is_brief = len(columns) < window_steps and inside.sum() < cheap_seconds
                if not is_brief and inside.sum() >= scores.threshold / 2 * len(inside):
                    yield _held_episode(steps, (row, cause), columns, held[columns], inside)


def _alike(held: Matrix) -> Integers:
    """Steps of the pauses [steps] that are not far shorter than those that make up the time."""
    lengths = np.sort(held)
    half = lengths[np.searchsorted(lengths.cumsum(), lengths.sum() / 2)]
    return np.flatnonzero((held > 0) & (held >= _LEAST_RATIO * half))


def _split_at_gaps(steps: Steps, row: int, columns: Integers) -> Iterator[Integers]:
    """The pauses of a rank in parts without a long gap."""
    times = np.nan_to_num(steps.seconds[row]).cumsum()[columns]
    gaps = np.diff(times)
    longest = _GAPS_OF_MEDIAN * float(np.median(gaps)) if len(gaps) else 0.0
    yield from np.split(columns, 1 + np.flatnonzero(gaps > longest))


def _held_episode(
    steps: Steps, whose: tuple[int, str], columns: Integers, held: Matrix, cost: Matrix
) -> Episode:
    (row, cause), first, last = whose, int(columns[0]), int(columns[-1])
    rank, median = steps.ranks[row], float(np.median(held))
    start, end = int(steps.numbers[first]), int(steps.numbers[last])
    count = plural(len(held), "step")
    why = (
        _DOINGS[cause].format(rank, count, duration(float(held.sum())), start, end),
        f"In each it was {duration(median)} (median); the job lost {duration(float(cost.sum()))}.",
    )
    return Episode(
        start_step=start,
        end_step=end,
        columns=slice(first, last + 1),
        ongoing=last >= len(steps.numbers) - 2,
        ranks=(rank,),
        group=None,
        phase=None,
        phase_seconds=None,
        late_seconds=median,
        lost_by_step=cost,
        last_share=float(np.count_nonzero(cost)) / len(cost),
        confidence=MAX_CONFIDENCE,
        evidence=why,
        cause=HELD_CAUSES[cause],
    )
