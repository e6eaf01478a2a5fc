"""Judges ranks whose step times are their own: each against its own past, not against the median.

Workers may differ for good with nobody to blame, and half of them may turn slow at once. What slows
all in the same steps is the workload's. Only a rank that is slow from the first step to the last is
compared with the faster ones. Ranks that train independently, such as the workers of a parameter
server, are compared by the clock: what slows a machine slows its ranks at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Matrix
from lockstep_reports.chance import deviation_of, independence, measure_noise
from lockstep_reports.recording.account import HELD, Account
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search import late
from lockstep_reports.search.score import Scores, slow_phase
from lockstep_reports.verdict.episodes import held_episodes
from lockstep_reports.verdict.sentences import OWNER_OF_CAUSE
from lockstep_reports.verdict.verdict import (
    MAX_CONFIDENCE,
    Episode,
    Verdict,
    rank_by_cost,
    saved_by_repair,
    slow_workload,
    span_of,
    unknown,
)
from lockstep_reports.wording import duration, percent, plural

# A slot of the clock holds a step of the slowest rank, or a 60th of the run: a fault of a third of
# it then fills a window of the search.
_MIN_SLOTS = 60
_WARM_UP_STEPS = 5  # the first of any job are long, and fill many slots


def measure_paces(steps: Steps, rows: Sequence[int], own: Matrix) -> tuple[Steps, Matrix]:
    """Seconds a step of some ranks in slots of the clock, and their updates in them [ranks, slots].

    The number of a slot is the furthest step of any rank. Of each step ``own`` counts: seconds,
    [ranks, steps].
    """
    curves = [_progress_curve(steps, row, own[row]) for row in rows]
    edges = _choose_edges([curve[0] for curve in curves])
    at_edges = np.array(
        [
            [np.interp(edges, clock, values, left=np.nan, right=np.nan) for values in sums]
            for clock, *sums in curves
        ]
    )
    updates, seconds = np.diff(at_edges[:, 0]), np.diff(at_edges[:, 1])
    # A rank that has ended stays the furthest.
    furthest = np.maximum.accumulate(np.ceil(nan_stats.highest(at_edges[:, 2, 1:], axis=0)))
    members = tuple(steps.members[row] for row in rows)
    numbers = furthest.astype(np.int64)
    return replace(steps, members=members, numbers=numbers, seconds=seconds / updates), updates


def _progress_curve(steps: Steps, row: int, own: Matrix) -> Matrix:
    """Clock, updates, own seconds and step of a rank at each end of a step [4, ends]."""
    columns = np.flatnonzero(~np.isnan(steps.seconds[row]))
    columns = columns[min(_WARM_UP_STEPS, len(columns) // _MIN_SLOTS) :]
    begins, seconds = steps.start[row, columns], steps.seconds[row, columns]
    counts = np.arange(1.0, len(columns) + 1)
    ends = np.stack([begins + seconds, counts, own[columns].cumsum(), steps.numbers[columns]])
    return np.column_stack([[begins[0], 0, 0, 0], ends])


def _choose_edges(clocks: Sequence[Matrix]) -> Matrix:
    """Wall clock at the edges of the slots, by each rank's begin and ends of steps."""
    begin, end = min(clock[0] for clock in clocks), max(clock[-1] for clock in clocks)
    slowest = max((clock[-1] - clock[0]) / (len(clock) - 1) for clock in clocks)
    most = max(len(clock) for clock in clocks) - 1
    return np.linspace(begin, end, min(most, max(_MIN_SLOTS, int((end - begin) / slowest))) + 1)


# A rank that takes so many times as long as the faster quarter is slow for good, whatever the
# spread of the others: healthy hardware of one kind does not differ by that much.
_MAX_LEVEL = 1.4
# Less is slow for good only where a gap sets it apart from the others: one of 15 %, or of 25 %
# where few stand below, and twice as wide as all the others differ. Fleets that differ for good
# with nobody to blame rarely have such a gap: with levels normal by 5 %, fewer than one in 1,000
# fleets of ten; by 10 % one in 300.
_MIN_GAP, _MIN_GAP_OF_FEW, _FEW_BELOW, _MIN_BELOW = 0.14, 0.22, 6, 3  # gaps are logarithms
_GAPS_OF_SPREAD = 2.0
_LEAST_SPREAD = 0.01  # to which a level is known, as a logarithm
_LOW_QUANTILE = 0.25
# Windows twice those of synchronised steps: no collective levels the noise of own times.
_WINDOW_STEPS = 2 * late.WINDOW_STEPS
_MAX_NAMED = 8
# Least excess of a slow rank over its own low level, as a ratio and in standard deviations of the
# noise from step to step.
_MIN_SLOWER_RATIO, _MIN_SIGMAS = 0.08, 2.5
_MIN_SAVED_SHARE = 0.005  # of a stretch's time, by repairing the rank
# Correlation of a step with the next one from which on slow drifts of healthy ranks are taken for
# episodes more often than once in a hundred runs.
_PERSISTENT = 0.85
# The search for steady stretches and that for recurrent ones share the probability, and so do the
# two for long stretches and for high ones.
_PROBABILITY = late.FALSE_ALARM_PROBABILITY / 2


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Levels:
    """Usual times of ranks.

    Attributes:
        seconds: what a rank usually takes, or the faster ones where it is slow for good [ranks, 1].
        low: a rank's own low level: seconds, [ranks].
        is_slow: whether it is slow for good [ranks].
        common: what all ranks take longer in a step, as a ratio of 1 or more [1, steps].
        excess: the logarithm of a time over the usual one times ``common`` [ranks, steps].
    """

    seconds: Matrix
    low: Matrix
    is_slow: Flags
    common: Matrix
    excess: Matrix


def _measure_levels(seconds: Matrix) -> Levels | None:
    """From the low quartile of windowed medians; None where a rank took no time at all."""
    if (nan_stats.highest(seconds, axis=1) <= 0).any():
        return None
    # A slot without own time, such as one in a long exchange, says nothing of a pace.
    seconds = np.where(seconds > 0, seconds, np.nan)
    usable = seconds.shape[1] // _WINDOW_STEPS * _WINDOW_STEPS
    windows = seconds[:, :usable].reshape(len(seconds), -1, _WINDOW_STEPS)
    # Up to three windows in four may be slow.
    low = nan_stats.quantile(nan_stats.median(windows, axis=2), _LOW_QUANTILE, axis=1)
    is_slow = _slow_for_good(low)
    usual = np.where(is_slow, nan_stats.median(low[~is_slow]), low)[:, None]
    relative = seconds / usual
    common = np.maximum(nan_stats.quantile(relative, _LOW_QUANTILE, axis=0)[None, :], 1.0)
    excess = np.log(relative / common)
    return Levels(seconds=usual, low=low, is_slow=is_slow, common=common, excess=excess)


def _slow_for_good(low: Matrix) -> Flags:
    """Which ranks stand apart from the faster ones [ranks], by their low levels in seconds."""
    is_slow: Flags = low >= _MAX_LEVEL * nan_stats.quantile(low, _LOW_QUANTILE)
    order = np.argsort(low)
    ordered = np.log(low[order])
    # At most half of the ranks are slow: else the others are the fast ones.
    for below in range(max(_MIN_BELOW, -(-len(low) // 2)), len(low)):
        gap = ordered[below] - ordered[below - 1]
        spread = max(_LEAST_SPREAD, ordered[below - 1] - ordered[0])
        least = _MIN_GAP if below >= _FEW_BELOW else _MIN_GAP_OF_FEW
        if gap >= max(least, _GAPS_OF_SPREAD * spread):
            is_slow[order[below:]] = True
            break
    return is_slow if not is_slow.all() else np.zeros_like(is_slow)


def judge_own_times(
    steps: Steps, *, is_independent: bool = False
) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict, and an episode for each rank and stretch of steps in which it was slow.

    Of ranks that nobody waits for, what repairs would save is not measured here.

    Null hypothesis: a rank takes its own usual time, times what all ranks take longer in that
    step, times noise. Long stretches are tested by signs (``find_late``), so the shape of the
    noise does not matter; short ones by height and count together (``find_high``).
    """
    num_steps, min_steps = len(steps.numbers), 2 * _WINDOW_STEPS
    if len(steps.members) <= 1:
        return unknown("One series of step times was read; who is slow needs those of ranks."), ()
    if num_steps < min_steps:
        return unknown(f"{plural(num_steps, 'step')} recorded; {min_steps} are needed."), ()
    levels = _measure_levels(steps.seconds)
    if levels is None:
        return unknown("Some rank tells step times of zero; nothing can be compared."), ()
    change = np.diff(levels.excess, axis=1)
    threshold = max(_MIN_SLOWER_RATIO, _MIN_SIGMAS * deviation_of(change[change != 0]))
    slow = stretches = _late_stretches(levels.excess, threshold)
    saved = np.zeros_like(steps.seconds)
    if not is_independent:
        slow, saved = _who_costs(steps, levels, stretches)
    doubts = tuple(_doubts(levels.excess, stretches))
    if slow:
        episodes = [_episode(steps, levels, stretch, saved) for stretch in slow]
        in_order = sorted(episodes, key=lambda e: (e.start_step, e.ranks))
        return _name_slow(episodes, doubts), tuple(in_order)
    if common := _late_stretches(np.log(levels.common), threshold):
        ratio = float(nan_stats.median(levels.common[:, common[0].columns]))
        why = (
            f"at least three ranks in four took {ratio:.2f} times their usual time at the same "
            "steps; no rank is to blame."
        )
        return slow_workload(steps, common[0], None, why, *doubts), ()
    return _nobody(steps, levels, threshold, doubts), ()


def _late_stretches(excess: Matrix, threshold: float) -> list[late.Stretch]:
    """Long stretches, short ones that are high, and ranks that are slow again and again.

    A long pause is not many, so those that come again are counted by their first step.
    """
    is_late = excess > threshold
    is_first = is_late & ~np.pad(is_late, ((0, 0), (1, 0)))[:, :-1]
    steady = late.Search(
        threshold=threshold,
        min_mean_loss=threshold / 4,
        gap=_WINDOW_STEPS,
        weight=independence(excess),
        false_alarm_probability=_PROBABILITY,
    )
    again = replace(steady, weight=1.0, always=False, changed=False, recurrent=True)
    recurrent = late.find_late(np.where(is_late & ~is_first, 0.0, excess), again)
    stretches: list[late.Stretch] = []
    for stretch in (
        # Hiccups of busy hosts last up to eight steps, and two may follow each other.
        *(s for s in late.find_late(excess, steady) if s.num_late >= _WINDOW_STEPS),
        *late.find_high(excess, threshold, _PROBABILITY),
        *(s for s in recurrent if not s.is_steady),
    ):
        if not late.is_among(stretches, stretch):
            stretches.append(stretch)
    return sorted(stretches, key=lambda stretch: (stretch.unit, stretch.first))


def _late_cells(excess: Matrix, stretch: late.Stretch) -> Flags:
    """The steps of a stretch in which its rank was late; of a steady one all [columns]."""
    beyond = excess[stretch.unit, stretch.columns]
    is_late: Flags = (beyond > stretch.threshold) | stretch.is_steady
    return is_late


def _who_costs(
    steps: Steps, levels: Levels, stretches: Sequence[late.Stretch]
) -> tuple[list[late.Stretch], Matrix]:
    """The stretches whose repair would save time, and how much: seconds, [ranks, steps]."""
    remaining = list(stretches)
    usual = levels.seconds * levels.common
    while True:
        slow: Flags = np.zeros(steps.seconds.shape, bool)
        for stretch in remaining:
            slow[stretch.unit, stretch.columns] = _late_cells(levels.excess, stretch)
        # No longer than usual; what is shorter stays.
        repaired = np.where(slow, np.fmin(steps.seconds, usual), steps.seconds)
        saved = saved_by_repair(steps.seconds, repaired)
        longest = nan_stats.highest(repaired, axis=0)
        ratios = [
            float(saved[s.unit, s.columns].sum() / np.nansum(longest[s.columns])) for s in remaining
        ]
        if not ratios or min(ratios) >= _MIN_SAVED_SHARE:
            return remaining, np.where(slow, saved, 0.0)
        # One at a time: without it another one may be the slowest, and cost what it seemed to.
        del remaining[ratios.index(min(ratios))]


def _doubts(excess: Matrix, stretches: list[late.Stretch]) -> Iterator[str]:
    """A warning where the noise drags on for longer than the tests were calibrated for."""
    healthy = excess.copy()
    for stretch in stretches:
        healthy[stretch.unit, stretch.columns] = np.nan
    noise = measure_noise(healthy)
    if noise is not None and noise.correlation >= _PERSISTENT:
        yield (
            f"Step times drift: each is like the one before it (correlation "
            f"{noise.correlation:.2f}). From 0.85 on a drift of a healthy rank may look like an "
            "episode in more than one run of a hundred."
        )


def _name_slow(episodes: list[Episode], doubts: tuple[str, ...]) -> Verdict:
    """The slow ranks; what cost most comes first."""
    by_loss = sorted(episodes, key=rank_by_cost)
    lost = dict.fromkeys((e.ranks[0] for e in by_loss), 0.0)
    for episode in episodes:
        lost[episode.ranks[0]] += episode.lost_seconds
    lines = [line for episode in by_loss[:_MAX_NAMED] for line in episode.evidence]
    return Verdict(
        kind="rank",
        ranks=tuple(sorted(lost, key=lambda rank: -lost[rank])),
        confidence=by_loss[0].confidence,
        evidence=(*lines, *doubts),
    )


def _episode(steps: Steps, levels: Levels, stretch: late.Stretch, saved: Matrix) -> Episode:
    unit, columns = stretch.unit, stretch.columns
    is_late, span = _late_cells(levels.excess, stretch), span_of(steps, stretch.columns)
    inside = levels.excess[unit, columns][is_late]
    seconds = np.nan_to_num(steps.seconds[:, columns], nan=-np.inf)
    usual = "the faster ranks' time" if levels.is_slow[unit] else "its own usual time"
    end = ", the end of the recording" * span["ongoing"]
    steps_of = f"from step {span['start_step']} to {span['end_step']}{end}"
    if levels.is_slow[unit] and stretch.first <= 1 and span["ongoing"]:
        steps_of = "from the first recorded step to the last"
    often = "" if stretch.is_steady else "now and then "
    num_late = stretch.num_late if stretch.is_steady else int(is_late.sum())
    why = (
        f"Rank {steps.ranks[unit]} took {float(np.exp(nan_stats.median(inside))):.2f} times "
        f"{usual} {often}{steps_of}; it was so in {num_late:,} of {stretch.num_known:,} steps."
    )
    late_seconds = nan_stats.median(steps.seconds[unit, columns][is_late] * -np.expm1(-inside))
    return Episode(
        **span,
        ranks=(steps.ranks[unit],),
        late_seconds=float(late_seconds),
        lost_by_step=saved[unit, columns],
        last_share=float(np.mean(np.argmax(seconds, axis=0) == unit)),
        confidence=min(MAX_CONFIDENCE, 1 - stretch.chance),
        evidence=(why,),
    )


def _nobody(steps: Steps, levels: Levels, threshold: float, doubts: tuple[str, ...]) -> Verdict:
    ratios = levels.low / np.median(levels.low)
    slower = (
        f"No rank got slower than its own usual time by {percent(np.expm1(threshold))} or more for "
        "so long that repairing it would have saved time."
    )
    differ = (
        f"Ranks differ for good, from {ratios.min():.2f} to {ratios.max():.2f} of the median, and "
        "none stands apart from the others."
    )
    judged = f"{len(steps.numbers):,} steps of {plural(len(steps.members), 'rank')} were judged."
    return Verdict(kind="nobody", evidence=(slower, differ, judged, *doubts))


def judge_independent(steps: Steps, scores: Scores) -> tuple[Verdict, tuple[Episode, ...]]:
    """The verdict, and the episodes by what each rank lost of its own time."""
    account = scores.account
    # What the host took of a rank costs its own time.
    costs = {
        name: np.where((taken := np.nan_to_num(account.host[name])) > scores.threshold, taken, 0.0)
        for name in HELD
        if name in account.host
    }
    held = held_episodes(steps, scores, costs, late.WINDOW_STEPS)
    by_furthest = [_reindex_to_leading_rank(steps, episode) for episode in held]
    rows = np.flatnonzero(np.count_nonzero(~np.isnan(steps.seconds), axis=1) > 1).tolist()
    if len(rows) <= 1:
        return unknown("Steps of one rank were read; a pace needs others to compare with."), ()
    # Own work first: the wait for a server has the noise of all machines in it, and on a crowded
    # host that for cores of threads which nobody reads.
    crowded, with_waits = scores.is_crowded, account.own_work + account.transfer
    for own in (account.own_work,) if crowded else (account.own_work, with_waits):
        paces, updates = measure_paces(steps, rows, own)
        verdict, found = judge_own_times(paces, is_independent=True)
        if found:
            break
    slow = [_count_updates(steps, account, (paces, updates), episode) for episode in found]
    least_seconds = scores.tolerated_loss_seconds / len(steps.members)
    episodes = *(e for e in slow if e.lost_seconds > least_seconds), *by_furthest
    if (verdict.kind == "workload" and crowded) or (found and not episodes):
        verdict = replace(verdict, kind="nobody", cause="busy_host", confidence=None)
    costliest = sorted(episodes, key=rank_by_cost)
    if costliest and costliest[0].cause is not None:
        sure = costliest[0].confidence
        verdict = Verdict(kind="rank", cause=costliest[0].cause, confidence=sure)
    of_slots = {line for episode in found for line in episode.evidence}
    evidence = (
        *(line for episode in costliest[:_MAX_NAMED] for line in episode.evidence),
        *(line for line in verdict.evidence if line not in of_slots),
        _write_staleness(steps),
    )
    ranks = tuple(dict.fromkeys(episode.ranks[0] for episode in costliest))
    phase = costliest[0].phase if costliest else None
    return replace(verdict, ranks=ranks, phase=phase, evidence=evidence), episodes


def _measure_loss(paces: Steps, updates: Matrix, episode: Episode) -> tuple[float, float, float]:
    """What a rank spent and lost in its episode, in seconds, and the updates that it made.

    Updates are [ranks, slots].
    """
    row, slots = paces.ranks.index(episode.ranks[0]), episode.columns
    counts = np.nan_to_num(updates[row, slots])
    others = np.delete(paces.seconds, row, axis=0)
    # Once all others have ended nobody knows what is usual.
    is_known = ~np.isnan(others).all(axis=0)
    outside = np.delete(np.where(is_known, paces.seconds[row], np.nan), slots)
    usual_ratio = 1.0
    if np.count_nonzero(~np.isnan(outside)) >= late.WINDOW_STEPS:
        others_outside = nan_stats.median(np.delete(others, slots, axis=1))
        usual_ratio = float(nan_stats.median(outside) / others_outside)
    count, spent = float(counts.sum()), float(np.nansum(paces.seconds[row, slots] * counts))
    # Against the others at the same time: a rank does not lose what slows all of them.
    usual = usual_ratio * float(nan_stats.median(others[:, slots])) * count
    # Whoever has updates in half of the slots trained for half of the run.
    trained = np.ptp(paces.start[np.isfinite(paces.start)]) * np.count_nonzero(counts)
    return max(spent, float(trained) / updates.shape[1]), max(0.0, spent - usual), count


def _count_updates(
    steps: Steps, account: Account, by_slot: tuple[Steps, Matrix], episode: Episode
) -> Episode:
    """The episode on the steps, with its phase and the updates that its rank lost."""
    rank, (total, lost_seconds, count) = episode.ranks[0], _measure_loss(*by_slot, episode)
    slowdown, span = total / (total - lost_seconds), (episode.start_step, episode.end_step)
    moved = _move(steps, episode, span, lost_seconds, (
        f"Rank {rank} took {slowdown:.2f} times its usual time while the furthest rank went from "
        f"step {span[0]} to {span[1]}, and made {round(count):,} updates instead of "
        f"{round(count * slowdown):,}."
    ))  # fmt: skip
    phases, rows = {**account.own, "sync": account.transfer}, [steps.ranks.index(rank)]
    phase, seconds = slow_phase(phases, rows, moved.columns, episode.late_seconds)
    return replace(moved, phase=phase, phase_seconds=seconds)


def _reindex_to_leading_rank(steps: Steps, episode: Episode) -> Episode:
    """An episode in a rank's own steps as one in those of the furthest rank at the same time."""
    row, own = steps.ranks.index(episode.ranks[0]), episode.columns
    begins = steps.start[row, [own.start, own.stop - 1]]
    first, last = (int(steps.numbers[(steps.start <= t).any(axis=0)].max()) for t in begins)
    return _move(steps, episode, (first, last), episode.lost_seconds, (
        f"{OWNER_OF_CAUSE[episode.cause or ''].subject.format(episode.ranks[0])} for "
        f"{duration(episode.lost_seconds)} while the furthest rank went from step {first} to "
        f"{last}."
    ))  # fmt: skip


def _move(
    steps: Steps, episode: Episode, span: tuple[int, int], lost_seconds: float, why: str
) -> Episode:
    """The episode in other steps, with what its rank lost of its own time there."""
    first, stop = map(int, np.searchsorted(steps.numbers, (span[0], span[1] + 1)))
    # Of a rank's time the job loses its part of all ranks' time.
    lost = lost_seconds / len(steps.members) / max(1, stop - first)
    return replace(
        episode,
        start_step=span[0],
        end_step=span[1],
        columns=slice(first, stop),
        lost_by_step=np.full(stop - first, lost),
        evidence=(f"{why} What is lost is its own: no other rank waited for it.",),
    )


def _write_staleness(steps: Steps) -> str:
    """How stale the parameters were by which the stalest ranks made their updates."""
    stale = {member.rank: member.staleness_steps or 0.0 for member in steps.members}
    stalest = sorted(stale, key=lambda rank: -stale[rank])[:_MAX_NAMED]
    means = ", ".join(f"rank {rank} {stale[rank]:.1f}" for rank in stalest)
    return f"Updates of others that an update lacked on the mean (staleness in steps): {means}."
