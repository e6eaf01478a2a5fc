"""Episodes: those of candidates that the search found, and those that the host's record proves."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.candidates import Candidate
from lockstep_reports.search.score import MIN_EFFECT_RATIO, Scores, last_share, slow_phase
from lockstep_reports.verdict.sentences import OWNERS, why_episode
from lockstep_reports.verdict.verdict import MAX_CONFIDENCE, Episode, span_of
from lockstep_reports.wording import duration, plural

# Steps that tell how long one was before. A smaller slowdown takes many steps to use the batches
# up, and how many is then mostly noise.
_USUAL_STEPS = 50
_MIN_LONGER = 0.03
# Of the stop by which half of the time is reached: far shorter ones are of something else.
_LEAST_RATIO = 0.25
# A gap of so many median ones is one of 1,000 where stops come at a steady rate.
_GAPS_OF_MEDIAN = 10.0
_MAX_SHARE_OF_RANKS = 0.5  # more than these are held in turns


def episode_of(steps: Steps, scores: Scores, candidate: Candidate) -> Episode:
    """The episode of a candidate."""
    stretch, rows = candidate.stretch, candidate.rows
    late_seconds = float(nan_stats.median(candidate.margin[candidate.late]))
    # Nobody knows into which phase a wait for a core fell.
    phases = steps.phases if scores.is_crowded else scores.account.own
    phases = {name: phases[name] for name in scores.account.own}
    phase, phase_seconds = slow_phase(phases, rows, candidate.late_columns, late_seconds)
    has_group = candidate.units.kind not in {"rank", "ranks"}
    episode = Episode(
        **span_of(steps, stretch.columns),
        ranks=tuple(steps.ranks[row] for row in rows),
        group=candidate.units.names[stretch.unit] if has_group else None,
        group_is_node=candidate.units.kind == "node",
        phase=phase if steps.has_phases else None,
        phase_seconds=phase_seconds,
        late_seconds=late_seconds,
        lost_by_step=np.nan_to_num(candidate.cost),
        last_share=float(last_share(candidate.margin[None])[0]),
        confidence=min(MAX_CONFIDENCE, 1 - stretch.chance),
    )
    episode = replace(episode, evidence=tuple(why_episode(steps, episode, candidate)))
    return _with_fetched_ahead(steps, episode)


def _with_fetched_ahead(steps: Steps, episode: Episode) -> Episode:
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
    start = first - min(first, max(0, round((ahead - workers * ratio) / (1 - ratio))))
    why = (
        f"Its loader's workers fetch up to {ahead:,} batches ahead: "
        f"they fell behind from about step {steps.numbers[start]} on, and what they had fetched "
        f"lasted to step {episode.start_step}."
    )
    return replace(
        episode,
        start_step=int(steps.numbers[start]),
        columns=slice(start, episode.columns.stop),
        lost_by_step=np.concatenate([np.zeros(first - start), episode.lost_by_step]),
        evidence=(*episode.evidence, why),
    )


def held_episodes(
    steps: Steps, scores: Scores, costs: Mapping[str, Matrix], window_steps: int
) -> Iterator[Episode]:
    """Those of a few ranks that were stopped or collected garbage, again and again or for long.

    From ``window_steps`` pauses on none is brief; a brief one that cost little is left out. More
    than half of the ranks are held in turns. The costs by cause are seconds, [ranks, steps].
    """
    cheap_seconds = MIN_EFFECT_RATIO * float(np.nansum(scores.step_seconds))
    for cause, cost in costs.items():
        by_rank = cost.sum(axis=1)
        dear = np.flatnonzero((by_rank > 0) & (by_rank >= _LEAST_RATIO * by_rank.max(initial=0)))
        if len(dear) > _MAX_SHARE_OF_RANKS * len(steps.members):
            continue
        for row in dear.tolist():
            held = np.nan_to_num(scores.account.host[cause][row])
            for columns in _split_pauses(steps, row, held):
                inside = cost[row, columns[0] : columns[-1] + 1]
                is_brief = len(columns) < window_steps and inside.sum() < cheap_seconds
                if not is_brief and inside.sum() >= scores.threshold / 2 * len(inside):
                    yield _held_episode(steps, (row, cause), columns, held[columns], inside)


def _split_pauses(steps: Steps, row: int, held: Matrix) -> Iterator[Integers]:
    """The steps of a rank's pauses, in seconds [steps], in parts without a long gap.

    Those that are far shorter than the ones that make up the time are left out.
    """
    lengths = np.sort(held)
    half = lengths[np.searchsorted(lengths.cumsum(), lengths.sum() / 2)]
    columns = np.flatnonzero((held > 0) & (held >= _LEAST_RATIO * half))
    gaps = np.diff(np.nan_to_num(steps.seconds[row]).cumsum()[columns])
    longest = _GAPS_OF_MEDIAN * float(np.median(gaps)) if len(gaps) else 0.0
    yield from np.split(columns, 1 + np.flatnonzero(gaps > longest))


def _held_episode(
    steps: Steps, whose: tuple[int, str], columns: Integers, held: Matrix, cost: Matrix
) -> Episode:
    (row, cause), numbers = whose, steps.numbers[columns]
    owner, median = OWNERS[cause], float(np.median(held))
    none = ": none of its threads had a core, and none waited for one" * (cause == "stopped")
    span = (
        f"{owner.subject.format(steps.ranks[row])} in {plural(len(held), 'step')}, for "
        f"{duration(float(held.sum()))} in all, from step {numbers[0]} to {numbers[-1]}{none}."
    )
    cost_each = f"In each it was {duration(median)} (median); the job lost {duration(cost.sum())}."
    return Episode(
        **span_of(steps, slice(int(columns[0]), int(columns[-1]) + 1)),
        ranks=(steps.ranks[row],),
        late_seconds=median,
        lost_by_step=cost,
        last_share=float(np.count_nonzero(cost)) / len(cost),
        confidence=MAX_CONFIDENCE,
        evidence=(span, cost_each),
        cause=owner.cause,
    )
