"""What ranks waited for in each step, and what that cost, by whom and by what they waited for.

A late rank costs what the step would have been shorter without it. Several late in one step share
it by layers, as repairs would save it. Nobody is named here: what is small or follows no cause is
the ordinary difference of ranks, which healthy runs have too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording.account import PLANNED_PHASES, USUAL_QUANTILE, Account, total_of
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.chance import SIGMAS_PER_MEDIAN
from lockstep_reports.search.score import Scores, sample_rows
from lockstep_reports.search.units import single_ranks
from lockstep_reports.verdict.verdict import MIN_SHARE, Episode, saved_by_repair

LossKind = Literal["slow", "busy_host", "planned", "in_turns", "rare"]
# Normal noise is over eight deviations in none of 10^15 steps; what the host took needs no limit
# beyond the threshold, for it is measured and not inferred.
_SIGMAS = 8.0
_MIN_EXPLAINED_SHARE = 0.5  # of a wait; less leaves a cause of equal size
# What a rank does after the last collective of a step is waited for in the next one.
_AFTER_SYNC = frozenset({"optimizer", "other", *PLANNED_PHASES})
# A rank with more of a cause's cost is late itself; below it ranks take turns.
_MAX_SHARE_OF_ONE_RANK = 0.6
_MAX_RARE_STEPS, _MAX_RARE_SHARE = 8, 0.02
_MAX_NAMED_STEPS = 8
_MIN_GAPS, _REGULAR_SHARE = 2, 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """A part of the lost time with one owner.

    Attributes:
        kind: ``slow`` in an episode, ``busy_host`` where the host had the cores; ``planned`` work
            of some ranks; ``in_turns`` where many ranks had one cause; ``rare`` in a few steps.
        cause: phase or host cause that made the ranks late; None where nothing explains it.
        ranks: that the others waited for, costliest first.
        count: steps in which it was so.
        lost_seconds: wall time that the job lost.
        lost_ratio: the same as a share of the recorded steps.
        period_steps: steps from one time to the next, where it is regular; else None.
        steps: of a rare loss.
    """

    kind: LossKind
    cause: str | None
    ranks: tuple[int, ...]
    count: int
    first_step: int
    last_step: int
    lost_seconds: float
    lost_ratio: float
    period_steps: int | None = None
    steps: tuple[int, ...] = ()


class Charges(NamedTuple):
    """Late ranks by step, each with its cause and cost [late].

    Attributes:
        names: of the owners; ``causes`` holds indices of it, -1 where nothing explains a wait.
        costs: wall time that the job lost by it: seconds.
    """

    rows: Integers
    columns: Integers
    causes: Integers
    costs: Matrix
    names: tuple[str, ...]

    def select(self, mask: Flags) -> "Charges":
        """Those of a mask [late]."""
        rows, columns, causes, costs, names = self
        return Charges(rows[mask], columns[mask], causes[mask], costs[mask], names)


def charge(
    steps: Steps, account: Account, scores: Scores, episodes: Sequence[Episode] = ()
) -> Charges:
    """What each late rank cost in each step.

    Late is who has an episode there, whom the host or planned work made late, for these are
    measured, and whose own work did beyond the noise.
    """
    names = tuple(account.owners)
    waited = np.where(is_wait_known(steps), account.waited, np.nan)
    height = nan_stats.highest(waited, axis=0) - waited
    lateness = np.nan_to_num(single_ranks(steps).deviation(-waited))
    in_episode = _in_episodes(steps, episodes) & (lateness > 0)
    threshold = scores.threshold
    is_held = np.nan_to_num(_held(account)) > threshold * _MIN_EXPLAINED_SHARE
    is_late = in_episode | (is_held & (height > threshold))
    is_late |= lateness > max(threshold, _noise_limit(account))
    rows, columns = np.nonzero(is_late)
    if not len(rows):
        return Charges(rows, columns, rows, np.zeros(0), names)
    excess = _explain(account, rows, columns)
    num_own, heights = len(account.own), height[rows, columns]
    explained = excess.max(axis=0)
    is_measured = (excess.argmax(axis=0) >= num_own) & (explained >= _MIN_EXPLAINED_SHARE * heights)
    counts = in_episode[rows, columns] | is_measured
    counts |= lateness[rows, columns] > max(threshold, _noise_limit(account))
    rows, columns, heights = rows[counts], columns[counts], heights[counts]
    excess, is_measured = excess[:, counts], is_measured[counts]
    costs = _share(height, rows, columns)
    most = _longer(account, scores, rows, columns)
    most = np.where(is_measured, np.maximum(most, excess[num_own:].sum(axis=0)), most)
    costs = np.where(in_episode[rows, columns], costs, np.minimum(costs, most))
    if steps.steps_per_column is not None:
        weights = steps.steps_per_column[columns]
        costs, excess, heights = costs * weights, excess * weights, heights * weights
    whole = Charges(rows, columns, np.zeros_like(rows), costs, names)
    return _split(whole, excess, heights, num_own, threshold)


def _split(
    whole: Charges, excess: Matrix, heights: Matrix, num_own: int, threshold: float
) -> Charges:
    """The costs by owner: what is measured first, and what is left by the longest phase.

    ``excess`` is what each owner had beyond the others, in seconds [owners, late], ``heights`` how
    late a rank was.
    """
    left, parts = whole.costs.copy(), []
    for index in range(num_own, len(excess)):
        part = np.where(excess[index] > threshold, np.minimum(excess[index], left), 0.0)
        left -= part
        parts.append((part, np.full(len(part), index)))
    own = excess[:num_own]
    has_cause = own.max(axis=0) >= _MIN_EXPLAINED_SHARE * (heights - (whole.costs - left))
    parts.append((left, np.where(has_cause, own.argmax(axis=0), -1)))
    costs, causes = (np.concatenate(column) for column in zip(*parts, strict=True))
    rows, columns = (np.tile(values, len(parts)) for values in (whole.rows, whole.columns))
    everything = Charges(rows, columns, causes, costs, whole.names)
    return everything.select(costs > 0)


def is_wait_known(steps: Steps) -> Flags:
    """Where waits of a rank compare with those of others [ranks, steps]."""
    took_part = ~np.isnan(steps.sync)
    known: Flags = took_part | ~took_part.any(axis=0)
    return known


def _in_episodes(steps: Steps, episodes: Sequence[Episode]) -> Flags:
    inside = np.zeros(steps.seconds.shape, bool)
    for episode in episodes:
        # What comes after the last collective of the last step is waited for in the next.
        columns = slice(episode.columns.start, episode.columns.stop + 1)
        inside[np.isin(steps.ranks, episode.ranks), columns] = True
    return inside


def _held(account: Account) -> Matrix:
    """What the host and planned work took of a rank in a step and the one before: seconds."""
    held = total_of([*account.host.values(), *account.planned.values()])
    longest: Matrix = np.maximum(held, np.pad(held, ((0, 0), (1, 0)))[:, :-1])
    return longest


def _explain(account: Account, rows: Integers, columns: Integers) -> Matrix:
    """What each owner had of late ranks beyond the others: seconds, [owners, late]."""
    before = np.maximum(columns - 1, 0)
    excess = []
    for name, values in account.owners.items():
        if not np.any(values > 0):
            excess.append(np.zeros(len(rows)))
            continue
        # Of what is measured the least of any rank is usual, of work what half of them take.
        is_own = name in account.own
        usual = (nan_stats.median if is_own else nan_stats.lowest)(values, axis=0)
        seconds = values[rows, columns] - usual[columns]
        if name in _AFTER_SYNC:
            seconds = np.fmax(seconds, values[rows, before] - usual[before])
        excess.append(np.nan_to_num(seconds))
    return np.array(excess)


def _noise_limit(account: Account) -> float:
    """Lateness in seconds that noise of own work does not reach."""
    change = np.abs(np.diff(sample_rows(account.own_work), axis=1))
    return _SIGMAS * (nan_stats.median_number(change) or 0.0) * SIGMAS_PER_MEDIAN / 2**0.5


def _share(height: Matrix, rows: Integers, columns: Integers) -> Matrix:
    """Cost of each late rank: seconds [late]; arrivals after the earliest are [ranks, steps]."""
    used, positions = np.unique(columns, return_inverse=True)
    late_rows, compact = np.unique(rows, return_inverse=True)
    heights = np.zeros((len(late_rows), len(used)))
    heights[compact, positions] = height[rows, columns]
    others = np.nan_to_num(height[:, used], nan=0.0)
    others[rows, positions] = 0.0
    # Without the late ones the step would end with the next.
    base = np.max(others, axis=0)
    return saved_by_repair(heights, np.minimum(heights, base))[compact, positions]


def _longer(account: Account, scores: Scores, rows: Integers, columns: Integers) -> Matrix:
    """By how much a late rank did more than usual, or the step was longer: seconds [late].

    A peer that got faster costs nobody anything.
    """
    busy = total_of(account.owners.values())
    usual = nan_stats.quantile(busy, USUAL_QUANTILE, axis=1)
    before = np.maximum(columns - 1, 0)
    own = np.fmax(busy[rows, columns], busy[rows, before]) - usual[rows]
    usual_step = nan_stats.quantile(scores.step_seconds, USUAL_QUANTILE)
    longer: Matrix = np.fmax(own, scores.step_seconds[columns] - usual_step)
    return np.maximum(longer, 0.0)


def list_losses(
    steps: Steps, scores: Scores, charges: Charges, episodes: Sequence[Episode]
) -> tuple[Loss, ...]:
    """The lost time by its owners, costliest first; little without an episode counts nowhere."""
    covered = float(np.nansum(steps.sum_over_columns(scores.job_seconds)))
    losses = sorted(_group(steps, charges, episodes, covered), key=lambda loss: -loss.lost_seconds)
    least = {"slow": 0.0, "busy_host": 0.0}
    return tuple(loss for loss in losses if loss.lost_ratio > least.get(loss.kind, MIN_SHARE))


def of_episodes(steps: Steps, scores: Scores, episodes: Sequence[Episode]) -> tuple[Loss, ...]:
    """The same where waits tell nothing, and each episode states its own loss."""
    rows = {rank: row for row, rank in enumerate(steps.ranks)}
    covered = float(np.nansum(steps.sum_over_columns(scores.job_seconds)))
    losses = []
    for episode in episodes:
        inside = np.arange(episode.columns.start, episode.columns.stop)
        row = np.full(len(inside), rows.get(episode.ranks[0], 0))
        charges = Charges(row, inside, row * 0 - 1, episode.lost_by_step, ())
        kind: LossKind = "busy_host" if episode.busy_host else "slow"
        loss = _loss(steps, kind, episode.phase, charges, covered)
        losses.append(replace(loss, ranks=episode.ranks))
    return tuple(sorted(losses, key=lambda loss: -loss.lost_seconds))


def with_costs(
    episodes: Sequence[Episode], charges: Charges, ranks: Sequence[int]
) -> tuple[Episode, ...]:
    """The episodes with what their ranks cost by these charges."""
    owners, changed = _assign(charges, episodes, ranks), []
    for index, episode in enumerate(episodes):
        inside, first, stop = owners == index, episode.columns.start, episode.columns.stop
        columns = np.minimum(charges.columns[inside], stop - 1) - first
        costs: Matrix = np.zeros(stop - first)
        np.add.at(costs, columns, charges.costs[inside])
        changed.append(replace(episode, lost_by_step=costs))
    return tuple(changed)


def _assign(charges: Charges, episodes: Sequence[Episode], ranks: Sequence[int]) -> Integers:
    """Index of each charge's episode, -1 where it is in none [late]."""
    owners, of_charges = np.full(len(charges.rows), -1), np.array(ranks)[charges.rows]
    is_stop = charges.causes == (
        charges.names.index("stopped") if "stopped" in charges.names else len(charges.names)
    )
    for index, episode in enumerate(episodes):
        # What comes after the last collective of the last step is waited for in the next.
        inside = (charges.columns >= episode.columns.start) & (
            charges.columns <= episode.columns.stop
        )
        inside &= np.isin(of_charges, episode.ranks) & (owners < 0)
        if any(other.stood_still_seconds for other in episodes):
            inside &= is_stop == bool(episode.stood_still_seconds)
        owners[inside] = index
    return owners


def _group(
    steps: Steps, charges: Charges, episodes: Sequence[Episode], covered: float
) -> Iterator[Loss]:
    owners = _assign(charges, episodes, steps.ranks)
    for index, episode in enumerate(episodes):
        part = charges.select(owners == index)
        if len(part.rows):
            kind: LossKind = "busy_host" if episode.busy_host else "slow"
            yield _loss(steps, kind, _main_cause(part), part, covered)
    is_free = owners < 0
    for index in sorted(set(charges.causes[is_free].tolist())):
        part = charges.select(is_free & (charges.causes == index))
        cause = charges.names[index] if index >= 0 else None
        yield _loss(steps, _kind(cause, part, len(steps.numbers)), cause, part, covered)


def _main_cause(charges: Charges) -> str | None:
    costs = np.bincount(charges.causes + 1, weights=charges.costs)
    index = int(np.argmax(costs)) - 1
    return charges.names[index] if index >= 0 else None


def _kind(cause: str | None, charges: Charges, num_steps: int) -> LossKind:
    if cause in PLANNED_PHASES:
        return "planned"
    count = len(np.unique(charges.columns))
    if count <= max(1, min(_MAX_RARE_STEPS, _MAX_RARE_SHARE * num_steps)):
        return "rare"
    return "busy_host" if cause == "queued" else "in_turns"


def _loss(
    steps: Steps, kind: LossKind, cause: str | None, charges: Charges, covered: float
) -> Loss:
    by_rank = np.bincount(charges.rows, weights=charges.costs)
    by_step = np.bincount(charges.columns, weights=charges.costs)
    rows = [row for row in np.argsort(-by_rank, kind="stable").tolist() if by_rank[row] > 0]
    columns = np.flatnonzero(by_step)
    lost = float(charges.costs.sum())
    costliest = np.argsort(-by_step, kind="stable")[:_MAX_NAMED_STEPS]
    numbers = steps.numbers[columns] if len(columns) else steps.numbers[:1]
    return Loss(
        kind=kind,
        cause=cause,
        ranks=tuple(steps.ranks[row] for row in rows),
        count=len(columns),
        first_step=int(numbers[0]),
        last_step=int(numbers[-1]),
        lost_seconds=lost,
        lost_ratio=lost / covered if covered > 0 else 0.0,
        period_steps=_period(columns),
        steps=tuple(int(steps.numbers[c]) for c in sorted(costliest.tolist()) if by_step[c] > 0)
        if kind == "rare"
        else (),
    )


def _period(columns: Integers) -> int | None:
    """Steps from one column to the next, where nearly all are as far apart; else None."""
    gaps = np.diff(columns)
    if len(gaps) < _MIN_GAPS:
        return None
    period = int(np.median(gaps))
    return period if period > 1 and np.mean(gaps == period) >= _REGULAR_SHARE else None
