"""Losses: the waits of ranks in each step and their cost, by whom and by what they waited for.

A late rank costs what the step would have been shorter without it. Several late in one step share
it by layers, as repairs would save it. Nobody is named here: what is small or follows no cause is
the ordinary difference of ranks, which healthy runs have too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording.account import PLANNED_PHASES, USUAL_QUANTILE, Account, total_of
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.chance import noise_limit
from lockstep_reports.search.score import Scores, sample_rows
from lockstep_reports.search.units import beyond_others
from lockstep_reports.verdict.verdict import MIN_SHARE, Episode, saved_by_repair

LossKind = Literal["slow", "busy_host", "planned", "in_turns", "rare"]
_MIN_EXPLAINED_SHARE = 0.5  # of a wait; less leaves a cause of equal size
# What a rank does after the last collective of a step is waited for in the next one.
_LATE_OWNERS = frozenset({"optimizer", "other", *PLANNED_PHASES})
# A rank with more of a cause's cost is late itself; below it ranks take turns.
_MAX_SHARE_OF_ONE_RANK = 0.6
_MAX_RARE_STEPS, _MAX_RARE_SHARE = 8, 0.1
_MAX_NAMED_STEPS = 8
HELD_CAUSES = {"stopped": "process_stopped", "collector": "garbage_collection"}
"""The cause of an episode by the host cause that it is of."""
_MIN_TYPICAL = 2  # of two ranks the median is neither's
_STALLS_OF_LEAST, _MIN_STALLS = 2.0, 0.7
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


def charge(steps: Steps, scores: Scores, episodes: Sequence[Episode] = ()) -> Charges:
    """What each late rank cost in each step.

    Late is who has an episode there, whom the host or planned work made late, for these are
    measured, and whose own work did beyond the noise.
    """
    account = scores.account
    names = tuple(account.owners)
    if steps.is_independent:
        return _charge_independent(scores)
    height, lateness = _append_the_end(account, scores)
    in_episode = _mark_episodes(steps, episodes) & (lateness > 0)
    threshold, num_own = scores.threshold, len(account.own)
    least = max(threshold, noise_limit(sample_rows(account.own_work)))
    is_held = _held(account) > threshold * _MIN_EXPLAINED_SHARE
    rows, columns = np.nonzero(in_episode | (is_held & (height > threshold)) | (lateness > least))
    if not len(rows):
        return Charges(rows, columns, rows, np.zeros(0), names)
    excess, heights = _explain(account, rows, columns), height[rows, columns]
    explained = excess.max(axis=0)
    is_measured = (excess.argmax(axis=0) >= num_own) & (explained >= _MIN_EXPLAINED_SHARE * heights)
    counts = in_episode[rows, columns] | is_measured | (lateness[rows, columns] > least)
    rows, columns, heights = rows[counts], columns[counts], heights[counts]
    excess, is_measured = excess[:, counts], is_measured[counts]
    costs = _share(height, rows, columns)
    most = _longer(account, scores, rows, columns)
    most = np.where(is_measured, np.maximum(most, excess[num_own:].sum(axis=0)), most)
    costs = np.where(in_episode[rows, columns], costs, np.minimum(costs, most))
    columns = np.minimum(columns, len(steps.numbers) - 1)
    if steps.weights is not None:
        weights = steps.weights[columns]
        costs, excess, heights = costs * weights, excess * weights, heights * weights
    late = Charges(rows, columns, np.zeros_like(rows), costs, names)
    return _split(late, excess, heights, num_own, threshold)


def _append_the_end(account: Account, scores: Scores) -> tuple[Matrix, Matrix]:
    """How late each rank was after the earliest, and beyond the median: [ranks, steps + 1].

    The last column is the end of the run, where all wait for what comes after the last collective.
    """
    late = scores.lateness
    after = total_of(values[:, -1:] for name, values in account.owners.items()
                     if name in _LATE_OWNERS)  # fmt: skip
    after = np.nan_to_num(after - nan_stats.lowest(after, axis=0) - np.maximum(
        np.nan_to_num(late[:, -1:]), 0.0
    ))  # fmt: skip
    has_waits = np.any(late[:, -1:] >= 0)
    after = np.maximum(after, 0.0) * has_waits
    waits = np.column_stack(
        [scores.waits, np.where(has_waits, after.max(initial=0) - after, np.nan)]
    )
    lateness = np.nan_to_num(beyond_others(-waits))
    return np.column_stack([late, after]), lateness


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
    everything = Charges(rows, columns, causes, costs, late.names)
    return everything.select(costs > 0)


def _charge_independent(scores: Scores) -> Charges:
    """What the host took of ranks that wait for no other: seconds of their own."""
    names, parts = tuple(scores.account.owners), []
    for index, name in enumerate(names):
        held = scores.account.host.get(name)
        if held is not None and name != "queued":
            rows, columns = np.nonzero(np.nan_to_num(held) > scores.threshold)
            causes = np.full(len(rows), index)
            parts.append(Charges(rows, columns, causes, held[rows, columns], names))
    if not parts:
        none = np.zeros(0, int)
        return Charges(none, none, none, np.zeros(0), names)
    rows, columns, causes, costs = (
        np.concatenate(column) for column in zip(*(part[:4] for part in parts), strict=True)
    )
    return Charges(rows, columns, causes, costs, names)


def _mark_episodes(steps: Steps, episodes: Sequence[Episode]) -> Flags:
    inside = np.zeros((len(steps.members), len(steps.numbers) + 1), bool)
    for episode in episodes:
        # What comes after the last collective of the last step is waited for in the next.
        columns = slice(episode.columns.start, episode.columns.stop + 1)
        inside[np.isin(steps.ranks, episode.ranks), columns] = True
    return inside


def _held(account: Account) -> Matrix:
    """What the host and planned work took of a rank in a step and the one before: seconds."""
    held = np.nan_to_num(total_of([*account.host.values(), *account.planned.values()]))
    held = np.pad(held, ((0, 0), (1, 1)))
    longest: Matrix = np.maximum(held[:, 1:], held[:, :-1])
    return longest


def _explain(account: Account, rows: Integers, columns: Integers) -> Matrix:
    """What each owner had of late ranks beyond the others: seconds, [owners, late]."""
    before, last = np.maximum(columns - 1, 0), columns == account.waited.shape[1]
    columns = np.where(last, before, columns)
    excess = []
    for name, values in account.owners.items():
        if not np.any(values > 0):
            excess.append(np.zeros(len(rows)))
            continue
        # Of what is measured the least of any rank is usual, of work what half of them take.
        is_typical = name in account.own and len(values) > _MIN_TYPICAL
        usual = (nan_stats.median if is_typical else nan_stats.lowest)(values, axis=0)
        seconds = np.where(
            last & (name not in _LATE_OWNERS), 0.0, values[rows, columns] - usual[columns]
        )
        if name in _LATE_OWNERS:
            seconds = np.fmax(seconds, values[rows, before] - usual[before])
        excess.append(np.nan_to_num(seconds))
    return np.array(excess)


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
    columns = np.minimum(columns, busy.shape[1] - 1)
    own = np.fmax(busy[rows, columns], busy[rows, before]) - usual[rows]
    usual_step = nan_stats.quantile(scores.step_seconds, USUAL_QUANTILE)
    longer: Matrix = np.fmax(own, scores.step_seconds[columns] - usual_step)
    return np.maximum(longer, 0.0)


def list_losses(
    steps: Steps, scores: Scores, charges: Charges, episodes: Sequence[Episode]
) -> tuple[Loss, ...]:
    """The lost time by its owners, costliest first; little without an episode counts nowhere."""
    covered = float(np.nansum(steps.sum_over_columns(scores.job_seconds)))
    least = max(scores.threshold, noise_limit(sample_rows(scores.account.own_work)))
    charges = _drop_noise(charges, _assign(charges, episodes, steps.ranks), least)
    shared = _shared_plans(scores.account)
    grouped = _group(steps, charges, (episodes, shared), covered)
    losses = sorted(grouped, key=lambda loss: -loss.lost_seconds)
    return tuple(each for each in losses if each.kind == "slow" or each.lost_ratio > MIN_SHARE)


def _shared_plans(account: Account) -> frozenset[str]:
    """Planned work that all ranks do alike, so that whoever takes longest does by chance."""
    totals = {name: np.nansum(values, axis=1) for name, values in account.planned.items()}
    return frozenset(n for n, t in totals.items() if t.min() >= _MIN_EXPLAINED_SHARE * t.max())


def _drop_noise(charges: Charges, owners: Integers, least: float) -> Charges:
    """The charges without those of own work that are the tail of noise and no stalls.

    A tail has most of its cost where it begins, at the ``least`` lateness that counts, and stalls
    have it beyond.
    """
    own = [index for index, name in enumerate(charges.names) if name in OWN_WORK_PHASES]
    inferred = (owners < 0) & np.isin(charges.causes, [-1, *own])
    costs = charges.costs[inferred]
    beyond = costs[costs >= _STALLS_OF_LEAST * least].sum()
    is_tail = beyond < _MIN_STALLS * costs.sum()
    return charges.select(~(inferred & is_tail))


def list_episode_losses(
    steps: Steps, scores: Scores, episodes: Sequence[Episode]
) -> tuple[Loss, ...]:
    """The same where waits tell nothing, and each episode states its own loss."""
    rows = {rank: row for row, rank in enumerate(steps.ranks)}
    covered = float(np.nansum(steps.sum_over_columns(scores.job_seconds)))
    losses = []
    for episode in episodes:
        inside = np.arange(episode.columns.start, episode.columns.stop)
        row = np.full(len(inside), rows.get(episode.ranks[0], 0))
        charges = Charges(row, inside, row * 0 - 1, episode.lost_by_step, ())
        loss = _loss(steps, "slow", episode.phase, charges, covered)
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
    # What the host took has episodes of its own.
    held = np.isin(charges.causes, [
        index for index, name in enumerate(charges.names) if name in HELD_CAUSES
    ])  # fmt: skip
    for index, episode in enumerate(episodes):
        # What comes after the last collective of the last step is waited for in the next.
        inside = (charges.columns >= episode.columns.start) & (
            charges.columns <= episode.columns.stop
        )
        inside &= np.isin(of_charges, episode.ranks) & (owners < 0)
        owners[inside & (held == (episode.cause is not None))] = index
    return owners


def _group(
    steps: Steps,
    charges: Charges,
    findings: tuple[Sequence[Episode], frozenset[str]],
    covered: float,
) -> Iterator[Loss]:
    """The losses by episode, then by cause; ``findings`` are episodes and plans of all ranks."""
    episodes, shared = findings
    owners = _assign(charges, episodes, steps.ranks)
    for index in range(len(episodes)):
        part = charges.select(owners == index)
        if len(part.rows):
            yield _loss(steps, "slow", _main_cause(part), part, covered)
    is_free = owners < 0
    for index in sorted(set(charges.causes[is_free].tolist())):
        part = charges.select(is_free & (charges.causes == index))
        cause = charges.names[index] if index >= 0 else None
        is_planned = cause in PLANNED_PHASES and cause not in shared
        kind = "planned" if is_planned else _kind(cause, part, len(steps.numbers))
        yield _loss(steps, kind, cause, part, covered)


def _main_cause(charges: Charges) -> str | None:
    costs = np.bincount(charges.causes + 1, weights=charges.costs)
    index = int(np.argmax(costs)) - 1
    return charges.names[index] if index >= 0 else None


def _kind(cause: str | None, charges: Charges, num_steps: int) -> LossKind:
    if cause in PLANNED_PHASES:
        return "in_turns"
    count, by_rank = len(np.unique(charges.columns)), np.bincount(charges.rows, charges.costs)
    is_rare = count <= max(1, min(_MAX_RARE_STEPS, _MAX_RARE_SHARE * num_steps))
    if is_rare or by_rank.max() > _MAX_SHARE_OF_ONE_RANK * by_rank.sum():
        return "busy_host" if cause == "queued" and not is_rare else "rare"
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
