"""Losses: the waits of ranks in each step and their cost, by whom and by what they waited for.

A late rank costs what the step would have been shorter without it. Several late in one step share
it by layers, as repairs would save it. Nobody is named here: what is small or follows no cause is
the ordinary difference of ranks, which healthy runs have too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix, blocks_of_rows, is_zero, zeros
from lockstep_reports.recording.account import (
    HELD,
    PLANNED_PHASES,
    USUAL_QUANTILE,
    Account,
    total_of,
)
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import Scores, beyond_others
from lockstep_reports.verdict.verdict import MIN_SHARE, Episode, saved_by_repair

LossKind = Literal["slow", "busy_host", "planned", "in_turns", "rare"]
_MIN_EXPLAINED_SHARE = 0.5  # of a wait; less leaves a cause of equal size
# What a rank does after the last collective of a step is waited for in the next one.
_LATE_OWNERS = frozenset({"optimizer", "other", *PLANNED_PHASES})
# A rank with more of a cause's cost is late itself; below it ranks take turns.
_MAX_SHARE_OF_ONE_RANK = 0.6
_MAX_RARE_STEPS, _MAX_RARE_SHARE = 8, 0.1
_MAX_NAMED_STEPS = 8
_STALLS_OF_LEAST, _MIN_STALLS = 2.0, 0.7
_MIN_GAPS, _REGULAR_SHARE = 2, 0.8
# Of the run: waits for whoever is last, which the noise of healthy runs stays below.
_MIN_UNEVEN_RATIO = 0.15


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """A part of the lost time with one owner.

    Attributes:
        kind: ``slow`` in an episode, ``busy_host`` where the host had the cores; ``planned`` work
            of some ranks; ``in_turns`` where many ranks had one cause; ``rare`` in a few steps.
        cause: phase or host cause that made the ranks late; None where nothing explains it.
        ranks: that the others waited for, costliest first.
        count: steps in which it was so.
        num_late: ranks that were late at a time, on average; the others waited.
        lost_seconds: wall time that the job lost.
        lost_ratio: the same as a share of the recorded steps.
        period_steps: steps from one time to the next, where it is regular; else None.
        steps: of a rare loss.
    """

    kind: LossKind
    cause: str | None
    ranks: tuple[int, ...]
    count: int
    num_late: float
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

    def are_of(self, *names: str) -> Flags:
        """Which have one of these owners [late]."""
        numbers = [number for number, name in enumerate(self.names) if name in names]
        return np.isin(self.causes, numbers)

    def cost_of(self, name: str, shape: tuple[int, int]) -> Matrix:
        """What one owner cost: seconds, [ranks, steps]."""
        part = self.select(self.are_of(name))
        cost = np.zeros(shape) if len(part.rows) else zeros(shape)
        np.add.at(cost, (part.rows, part.columns), part.costs)
        return cost


def charge(steps: Steps, scores: Scores, episodes: Sequence[Episode] = ()) -> Charges:
    """What each late rank cost in each step.

    Late is who has an episode there, whom the host or planned work made late, for these are
    measured, and whose own work did beyond the noise.
    """
    account, lateness = scores.account, _Lateness(scores)
    threshold, least, num_own = scores.threshold, scores.noise_threshold, len(account.own)
    parts = zip(*_find_late(steps, scores, episodes, lateness), strict=True)
    rows, columns, heights, beyond, inside = map(np.concatenate, parts)
    excess = _explain(scores, rows, columns)
    is_measured = excess.max(axis=0) >= _MIN_EXPLAINED_SHARE * heights
    is_measured &= excess.argmax(axis=0) >= num_own
    counts = inside | is_measured | (beyond > least)
    rows, columns, heights = rows[counts], columns[counts], heights[counts]
    excess, is_measured = excess[:, counts], is_measured[counts]
    most = _longer(account, scores, rows, columns)
    most = np.where(is_measured, np.maximum(most, excess[num_own:].sum(axis=0)), most)
    most[inside[counts]] = np.inf
    costs = np.minimum(_share(lateness, rows, columns, heights), most)
    columns = np.minimum(columns, len(steps.numbers) - 1)
    if steps.weights is not None:
        weights = steps.weights[columns]
        costs, excess, heights = costs * weights, excess * weights, heights * weights
    late = Charges(rows, columns, np.zeros_like(rows), costs, tuple(account.owners))
    charges = _split(late, excess, heights, num_own, threshold)
    if not scores.is_crowded:
        return charges
    # Who takes cores takes caches too, and the cores of threads that nobody reads.
    host = late.names.index("queued")
    return charges._replace(causes=np.where(charges.causes < 0, host, charges.causes))


def _find_late(
    steps: Steps, scores: Scores, episodes: Sequence[Episode], lateness: "_Lateness"
) -> Iterator[tuple[Any, ...]]:
    """Who may be late: rows, columns, how late after the earliest and beyond the median [late].

    Last comes whether they have an episode there; some ranks after the others.
    """
    account, threshold, least = scores.account, scores.threshold, scores.noise_threshold
    of_episodes = [(np.isin(steps.ranks, each.ranks), _span_of(each)) for each in episodes]
    for block in blocks_of_rows(scores.waits):
        height, beyond = lateness.height(block), lateness.beyond(block)
        inside = np.zeros(beyond.shape, dtype=bool)
        for is_its, span in of_episodes:
            inside[is_its[block], span] = True
        inside &= beyond > 0
        # By the host or planned work, in a step or the one before.
        held = total_of(v[block] for v in (*account.host.values(), *account.planned.values()))
        is_held = np.nan_to_num(held) > threshold * _MIN_EXPLAINED_SHARE
        is_held = np.pad(is_held, ((0, 0), (1, 1)))
        is_held = is_held[:, 1:] | is_held[:, :-1]
        at = np.nonzero(inside | (is_held & (height > threshold)) | (beyond > least))
        yield at[0] + block.start, at[1], height[at], beyond[at], inside[at]


class _Lateness:
    """How late each rank was after the earliest, and beyond the median: [some ranks, steps + 1].

    The last column is the end of the run, where all wait for what comes after the last collective.
    """

    def __init__(self, scores: Scores) -> None:
        account, self._late, self._beyond = scores.account, scores.lateness, scores.beyond_others
        late = self._late[:, -1:]
        after = total_of(v[:, -1:] for name, v in account.owners.items() if name in _LATE_OWNERS)
        after = after - nan_stats.lowest(after, axis=0)
        after = np.nan_to_num(after - np.maximum(np.nan_to_num(late), 0.0))
        has_waits = np.any(late >= 0)
        self._after = np.maximum(after, 0.0) * has_waits
        waits = np.where(has_waits, self._after.max(initial=0) - self._after, np.nan)
        self._end = beyond_others(-waits)[:, :]
        self.shape = len(after), scores.waits.shape[1] + 1

    def height(self, rows: slice) -> Matrix:
        """After the earliest."""
        return np.column_stack([self._late[rows, :], self._after[rows]])

    def beyond(self, rows: slice) -> Matrix:
        """Beyond the median."""
        beyond: Matrix = np.column_stack([self._beyond[rows, :], self._end[rows]])
        return np.nan_to_num(beyond)


def _split(
    late: Charges, excess: Matrix, heights: Matrix, num_own: int, threshold: float
) -> Charges:
    """The costs by owner: what is measured first, and what is left by the longest phase.

    ``excess`` is what each owner had beyond the others, in seconds [owners, late], ``heights`` how
    late a rank was.
    """
    left, parts = late.costs.copy(), []
    for index in range(num_own, len(excess)):
        part = np.where(excess[index] > threshold, np.minimum(excess[index], left), 0.0)
        left -= part
        parts.append((part, np.full(len(part), index)))
    own = excess[:num_own]
    has_cause = own.max(axis=0) >= _MIN_EXPLAINED_SHARE * (heights - (late.costs - left))
    parts.append((left, np.where(has_cause, own.argmax(axis=0), -1)))
    costs, causes = (np.concatenate(column) for column in zip(*parts, strict=True))
    rows, columns = (np.tile(values, len(parts)) for values in (late.rows, late.columns))
    return Charges(rows, columns, causes, costs, late.names).select(costs > 0)


def _span_of(episode: Episode) -> slice:
    # What comes after the last collective of the last step is waited for in the next.
    return slice(episode.columns.start, episode.columns.stop + 1)


def _explain(scores: Scores, rows: Integers, columns: Integers) -> Matrix:
    """What each owner had of late ranks beyond the others: seconds, [owners, late]."""
    owners = scores.account.owners
    before, last = np.maximum(columns - 1, 0), columns == scores.waits.shape[1]
    columns = np.where(last, before, columns)
    excess = np.zeros((len(owners), len(rows)))
    for index, (name, values) in enumerate(owners.items()):
        usual = scores.usual_by_owner[name]
        seconds = values[rows, columns] - usual[columns]
        if name in _LATE_OWNERS:
            seconds = np.fmax(seconds, values[rows, before] - usual[before])
        else:
            seconds = np.where(last, 0.0, seconds)
        excess[index] = np.nan_to_num(seconds)
    return excess


def _share(lateness: _Lateness, rows: Integers, columns: Integers, heights: Matrix) -> Matrix:
    """Cost of each late rank: seconds [late], by how late they were after the earliest."""
    base, shares = np.zeros(lateness.shape[1]), np.zeros(len(rows))
    for block in blocks_of_rows(zeros(lateness.shape)):
        others = np.nan_to_num(lateness.height(block), nan=0.0)
        inside = (rows >= block.start) & (rows < block.stop)
        others[rows[inside] - block.start, columns[inside]] = 0.0
        # Without the late ones the step would end with the next.
        base = np.maximum(base, others.max(axis=0))
    order = np.argsort(columns, kind="stable")
    for late in np.split(order, 1 + np.flatnonzero(np.diff(columns[order]))) if len(rows) else ():
        of_step = heights[late, None].astype(np.float64)
        shares[late] = saved_by_repair(of_step, np.minimum(of_step, base[columns[late[0]]]))[:, 0]
    return shares


def _longer(account: Account, scores: Scores, rows: Integers, columns: Integers) -> Matrix:
    """By how much a late rank did more than usual, or the step was longer: seconds [late].

    A peer that got faster costs nobody anything.
    """
    num_steps, own = scores.waits.shape[1], np.empty(len(rows))
    before, columns = np.maximum(columns - 1, 0), np.minimum(columns, num_steps - 1)
    late_rows, row = np.unique(rows, return_inverse=True)
    for block in blocks_of_rows(zeros((len(late_rows), num_steps))):
        busy = total_of(each[late_rows[block]] for each in account.owners.values())
        usual = nan_stats.quantile(busy, USUAL_QUANTILE, axis=1)
        inside = np.flatnonzero((row >= block.start) & (row < block.stop))
        at = row[inside] - block.start
        longest = np.fmax(busy[at, columns[inside]], busy[at, before[inside]])
        own[inside] = longest - usual[at]
    usual_step = nan_stats.quantile(scores.step_seconds, USUAL_QUANTILE)
    longer: Matrix = np.fmax(own, scores.step_seconds[columns] - usual_step)
    return np.maximum(longer, 0.0)


def list_losses(
    steps: Steps, scores: Scores, charges: Charges, episodes: Sequence[Episode]
) -> tuple[Loss, ...]:
    """The lost time by its owners, costliest first; little without an episode counts nowhere."""
    # Own work without an episode has to be stalls: the tail of noise has most of its cost where it
    # begins, at the lateness that counts, and stalls have it beyond.
    is_own = charges.are_of(*OWN_WORK_PHASES) | (charges.causes < 0)
    inferred = is_own & (_assign(steps, charges, episodes) < 0)
    costs = charges.costs[inferred]
    beyond = costs[costs >= _STALLS_OF_LEAST * scores.noise_threshold].sum()
    if beyond < _MIN_STALLS * costs.sum():
        charges = charges.select(~inferred)
    charges = _add_uneven(steps, scores, charges)
    losses = sorted(_group(steps, scores, charges, episodes), key=lambda loss: -loss.lost_seconds)
    return tuple(each for each in losses if each.kind == "slow" or each.lost_ratio > MIN_SHARE)


def _add_uneven(steps: Steps, scores: Scores, charges: Charges) -> Charges:
    """The charges, and what ranks wait for whoever is last where no step is without such a wait.

    Where most steps are uneven none stands out; that costs no less, and names nobody.
    """
    columns = np.arange(len(steps.numbers))
    rows, lateness = np.zeros_like(columns), np.full(len(columns), -np.inf)
    for block in blocks_of_rows(scores.beyond_others):
        beyond = np.nan_to_num(scores.beyond_others[block, :])
        latest = beyond.argmax(axis=0)
        later = beyond[latest, columns] > lateness
        rows = np.where(later, block.start + latest, rows)
        lateness = np.where(later, beyond[latest, columns], lateness)
    weights = np.ones(len(columns)) if steps.weights is None else steps.weights
    charged = np.bincount(charges.columns, charges.costs, len(columns))
    costs = np.maximum(lateness * weights - charged, 0.0)
    if scores.is_crowded or costs.sum() < _MIN_UNEVEN_RATIO * scores.covered_seconds:
        return charges
    own = _explain(scores, rows, columns)[: len(scores.account.own)]
    has_cause = own.max(axis=0) >= _MIN_EXPLAINED_SHARE * lateness
    causes = np.where(has_cause, own.argmax(axis=0), -1)
    uneven = Charges(rows, columns, causes, costs, charges.names).select(costs > 0)
    values = (np.concatenate(pair) for pair in zip(charges[:4], uneven[:4], strict=True))
    rows, columns, causes, costs = values
    return Charges(rows, columns, causes, costs, charges.names)


def list_episode_losses(
    steps: Steps, scores: Scores, episodes: Sequence[Episode]
) -> tuple[Loss, ...]:
    """The same where waits tell nothing, and each episode states its own loss."""
    losses = []
    for episode in episodes:
        columns = np.arange(episode.columns.start, episode.columns.stop)
        charges = Charges(columns * 0, columns, columns * 0 - 1, episode.lost_by_step, ())
        loss = _loss(steps, scores, "slow", episode.phase, charges)
        losses.append(replace(loss, ranks=episode.ranks, num_late=float(len(episode.ranks))))
    return tuple(sorted(losses, key=lambda loss: -loss.lost_seconds))


def with_costs(steps: Steps, episodes: Sequence[Episode], charges: Charges) -> tuple[Episode, ...]:
    """The episodes with what their ranks cost by these charges."""
    owners, changed = _assign(steps, charges, episodes), []
    for index, episode in enumerate(episodes):
        first, stop = episode.columns.start, episode.columns.stop
        part = charges.select(owners == index)
        columns = np.minimum(part.columns, stop - 1) - first
        costs = np.bincount(columns, part.costs, stop - first)
        changed.append(replace(episode, lost_by_step=costs.astype(np.float64)))
    return tuple(changed)


def _assign(steps: Steps, charges: Charges, episodes: Sequence[Episode]) -> Integers:
    """Index of each charge's episode, -1 where it is in none [late].

    Episodes of own work have those of it, and those of what the host took the others.
    """
    owners, is_held = np.full(len(charges.rows), -1), charges.are_of(*HELD)
    for index, episode in reversed(list(enumerate(episodes))):
        span = _span_of(episode)
        rows = np.flatnonzero(np.isin(steps.ranks, episode.ranks))
        inside = (charges.columns >= span.start) & (charges.columns < span.stop)
        inside &= (is_held == (episode.cause is not None)) & np.isin(charges.rows, rows)
        owners[inside] = index
    return owners


def _group(
    steps: Steps, scores: Scores, charges: Charges, episodes: Sequence[Episode]
) -> Iterator[Loss]:
    """The losses by episode, then by cause."""
    owners = _assign(steps, charges, episodes)
    for index in range(len(episodes)):
        part = charges.select(owners == index)
        if len(part.rows):
            main = int(np.argmax(np.bincount(part.causes + 1, weights=part.costs))) - 1
            yield _loss(steps, scores, "slow", charges.names[main] if main >= 0 else None, part)
    planned_work = scores.account.planned.items()
    totals = {name: np.nansum(v, axis=1) for name, v in planned_work if not is_zero(v)}
    for index in sorted(set(charges.causes[owners < 0].tolist())):
        part = charges.select((owners < 0) & (charges.causes == index))
        cause = charges.names[index] if index >= 0 else None
        kind = _kind(cause, part, len(steps.numbers))
        planned = totals.get(cause or "")
        # What all ranks plan alike takes one of them longest by chance.
        if planned is not None and planned.min() < _MIN_EXPLAINED_SHARE * planned.max():
            kind = "planned"
        yield _loss(steps, scores, kind, cause, part)


def _kind(cause: str | None, charges: Charges, num_steps: int) -> LossKind:
    if cause in PLANNED_PHASES:
        return "in_turns"
    count, by_rank = len(np.unique(charges.columns)), np.bincount(charges.rows, charges.costs)
    is_rare = count <= max(1, min(_MAX_RARE_STEPS, _MAX_RARE_SHARE * num_steps))
    if cause == "queued" and not is_rare:
        return "busy_host"
    is_of_one = by_rank.max() > _MAX_SHARE_OF_ONE_RANK * by_rank.sum()
    return "rare" if is_rare or is_of_one else "in_turns"


def _loss(
    steps: Steps, scores: Scores, kind: LossKind, cause: str | None, charges: Charges
) -> Loss:
    by_rank = np.bincount(charges.rows, weights=charges.costs)
    by_step = np.bincount(charges.columns, weights=charges.costs)
    columns, lost = np.flatnonzero(by_step), float(charges.costs.sum())
    costliest = np.argsort(-by_step, kind="stable")[: _MAX_NAMED_STEPS * (kind == "rare")]
    numbers = steps.numbers[columns] if len(columns) else steps.numbers[:1]
    pairs = np.unique(np.column_stack([charges.columns, charges.rows]), axis=0)
    num_late = np.bincount(pairs[:, 0], minlength=len(by_step))
    is_unknown = cause == "other" and not steps.has_phases
    return Loss(
        kind=kind,
        cause=None if is_unknown else cause,
        ranks=tuple(
            steps.ranks[row] for row in np.argsort(-by_rank, kind="stable") if by_rank[row] > 0
        ),
        count=len(columns),
        num_late=float(num_late @ by_step) / lost if lost > 0 else 1.0,
        first_step=int(numbers[0]),
        last_step=int(numbers[-1]),
        lost_seconds=lost,
        lost_ratio=lost / scores.covered_seconds if scores.covered_seconds > 0 else 0.0,
        period_steps=_period(columns),
        steps=tuple(int(steps.numbers[c]) for c in np.sort(costliest) if by_step[c] > 0),
    )


def _period(columns: Integers) -> int | None:
    """Steps from one column to the next, where nearly all are as far apart; else None."""
    gaps = np.diff(columns)
    if len(gaps) < _MIN_GAPS:
        return None
    period = int(np.median(gaps))
    return period if period > 1 and np.mean(gaps == period) >= _REGULAR_SHARE else None
