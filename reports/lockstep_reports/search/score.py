"""Scores every rank at every step: own work, lateness, and what its lateness cost the job.

A rank that comes late waits least, so the shortest synchronisation names it. Its cost is what the
job would have gained had it come as early as the second-latest. No clock is compared.

Ranks may be late as units, with their node or another group that the mesh defines: all of them
after all others. By noise at most one unit of a kind is so in a step, however many there are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import (
    Cells,
    Difference,
    Flags,
    Integers,
    Matrix,
    blocks_of_columns,
    blocks_of_rows,
    negative,
    zeros,
)
from lockstep_reports.chance import noise_limit, sample_rows
from lockstep_reports.recording.account import HELD, USUAL_QUANTILE, Account, divide, total_of
from lockstep_reports.recording.steps import Steps

# What a step must lose to count, as a share of the median step.
MIN_EFFECT_RATIO = 0.05
# Of what a rank waits for cores. In seven of 57 healthy runs, whose ranks waited so in 12 to 69 %
# of the time, one rank lost up to 11 % of these waits by its own work, and in one 22 %.
_MAX_LOST_BESIDE = 0.125
# A rank that writes a checkpoint for the whole job is late on purpose: planned work that makes up
# half of the margin or more is the reason, and the step says nothing about the rank.
_PLANNED_SHARE = 0.5
# Share of the lateness that a phase must exceed the others' by, to be named for it.
_MIN_PHASE_SHARE = 0.25
# Share of a rank's steps; of fewer that are left nobody knows what is usual.
MOST_SLOW = 0.9
_MIN_TYPICAL = 2  # of two ranks the median is neither's
# Among more ranks than these the median of all is as good as that of the others, and quicker.
_MANY_RANKS = 64
_CELLS_AT_ONCE, _LEAST_COLUMNS = 1 << 20, 16
_AXES = {"pp": "pipeline stage", "dp": "data-parallel replica", "ep": "expert group"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Units:
    """Units of one kind; each rank belongs to one of them at most.

    Attributes:
        kind: ``rank``, ``node``, ``pipeline stage`` and the like, or ``ranks`` for a set.
        names: of the units.
        unit_of: index of each rank's unit, -1 for a rank in none [ranks].
        num_candidates: number of units that the recording itself chose these from; 0 when they
            were given beforehand. A test must correct for the choice.
    """

    kind: str
    names: tuple[str, ...]
    unit_of: Integers
    num_candidates: float = 0.0

    def rows(self, unit: int) -> list[int]:
        """Rows of a unit's ranks."""
        rows: list[int] = np.flatnonzero(self.unit_of == unit).tolist()
        return rows

    def margin(self, values: Cells) -> "Margin":
        """Smallest value of each unit beyond the largest of all other ranks: [units, steps].

        Values are [ranks, steps]; NaN is unknown, and the margin where a unit or all others are.
        """
        highest, lowest = self.extremes(values)
        top, second = np.full((2, values.shape[1]), np.nan, lowest[:0, :].dtype)
        latest = np.zeros(values.shape[1], dtype=np.int64)
        for rows in blocks_of_rows(highest):
            block = highest[rows, :]
            # Of units that are equally late the first is the latest.
            most = np.fmax.reduce(block, axis=0)
            newer = np.flatnonzero(~(most <= top) & ~np.isnan(most))
            part = block[:, newer].copy()
            at = np.argmax(np.where(np.isnan(part), -np.inf, part), axis=0)
            part[at, np.arange(len(newer))] = np.nan
            second, least = np.fmax(second, most), np.fmax.reduce(part, axis=0)
            second[newer], latest[newer] = np.fmax(top[newer], least), rows.start + at
            top = np.fmax(top, most)
        beyond = np.full_like(top, np.nan)
        # Where the latest is of no unit, each unit compares with it.
        of_unit = np.flatnonzero(latest < len(self.names))
        beyond[of_unit] = lowest[latest[of_unit], of_unit] - second[of_unit]
        beyond[~np.isfinite(beyond)] = np.nan
        return Margin(lowest, top, second, latest, beyond)

    def extremes(self, values: Cells) -> tuple[Cells, Cells]:
        """Highest value [units + 1, steps] and lowest value [units, steps] of each unit.

        The last row of the highest values is that of the ranks in no unit.
        """
        if self.kind == "rank":
            return values, values
        shape = (len(self.names) + 1, values.shape[1])
        highest, lowest = np.full(shape, np.nan), np.full(shape, np.inf)
        order = np.argsort(self.unit_of, kind="stable")
        # Index -1, of ranks in no unit, is the last row.
        units, begins = np.unique(self.unit_of[order], return_index=True)
        # Some steps at a time: the ranks in that order would be a matrix more, and its parts too.
        size = max(_LEAST_COLUMNS, _CELLS_AT_ONCE // len(order))
        is_even = len(set(np.diff(begins, append=len(order)).tolist())) == 1
        for first in range(0, values.shape[1], size):
            columns = slice(first, first + size)
            inside = values[order, columns]
            if is_even:  # as nodes are; this way is ten times as quick
                inside = inside.reshape(len(units), -1, inside.shape[1])
                highest[units, columns] = np.fmax.reduce(inside, axis=1)
                lowest[units, columns] = np.fmin.reduce(inside, axis=1)
                continue
            highest[units, columns] = np.fmax.reduceat(inside, begins)
            lowest[units, columns] = np.fmin.reduceat(inside, begins)
        return highest, np.where(np.isinf(lowest), np.nan, lowest)[:-1]


@dataclass(frozen=True, slots=True, eq=False)
class Margin:
    """By how much each unit came after all others: seconds, [units, steps], asked as ``Cells``.

    Attributes:
        lowest: value of each unit [units, steps].
        highest: of all units, ``second`` of all but ``latest``, which has the highest [steps].
        of_latest: the margin of that unit [steps].
    """

    lowest: Cells
    highest: Matrix
    second: Matrix
    latest: Integers
    of_latest: Matrix

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of units, and of steps."""
        return self.lowest.shape

    def __len__(self) -> int:
        return len(self.lowest)

    def __getitem__(self, where: tuple[Any, Any]) -> Matrix:
        rows, columns = where
        is_latest = np.arange(len(self))[rows, ...][..., None] == self.latest[columns]
        beyond: Matrix = self.lowest[where] - self.highest[columns]
        return np.where(is_latest, self.of_latest[columns], beyond)

    def without(self, columns: Flags) -> "Margin":
        """The same, unknown in the steps of a mask [steps]."""
        highest, of_latest = (np.where(columns, np.nan, e) for e in (self.highest, self.of_latest))
        return replace(self, highest=highest, of_latest=of_latest)

    def others(self, unit: int, columns: slice) -> Matrix:
        """Largest value of all units but one [some steps]."""
        is_latest = self.latest[columns] == unit
        return np.where(is_latest, self.second[columns], self.highest[columns])


def medians(values: Cells, without: Sequence[int] = ()) -> Matrix:
    """Median over the ranks [steps], without those of some rows: a few steps at a time."""
    parts = (values[:, columns] for columns in blocks_of_columns(values))
    some = (np.delete(part, without, axis=0) if len(without) else part for part in parts)
    return np.concatenate([nan_stats.median(part, axis=0) for part in some])


def beyond_others(cells: Cells) -> Cells:
    """Each value beyond the median of all others: [members, ...]; NaN where unknown."""
    if len(cells) > _MANY_RANKS:
        return Difference(cells, np.broadcast_to(medians(cells), cells.shape))
    values: Matrix = cells[:, :]
    if np.isnan(values).any():
        rows = range(len(values))
        return values - [nan_stats.median(np.delete(values, row, axis=0), axis=0) for row in rows]
    # Without one value of a sorted column, all values above it move down by one, so a median of
    # the others needs no sort of its own.
    order, num_others = np.sort(values, axis=0), len(values) - 1
    beyond = values.copy()
    for index in ((num_others - 1) // 2, num_others // 2):
        beyond -= np.where(values <= order[index], order[index + 1], order[index]) / 2
    return beyond


def single_ranks(steps: Steps) -> Units:
    """Every rank as a unit of its own."""
    names = tuple(str(rank) for rank in steps.ranks)
    return Units(kind="rank", names=names, unit_of=np.arange(len(names)))


def groups(steps: Steps) -> Iterator[Units]:
    """Nodes, pipeline stages, replicas and experts, where there are two or more of them."""
    kinds = {"node": [member.node for member in steps.members]}
    for axis, kind in _AXES.items():
        coordinates = (member.mesh.get(axis, -1) for member in steps.members)
        kinds[kind] = [f"{kind} {c}" if c >= 0 else "" for c in coordinates]
    for kind, names in kinds.items():
        # An empty name is of none.
        unique = tuple(dict.fromkeys(name for name in names if name))
        index = {name: number for number, name in enumerate(unique)}
        if 1 < len(unique) < len(names):
            unit_of = np.array([index.get(name, -1) for name in names])
            yield Units(kind=kind, names=unique, unit_of=unit_of)


def gapped_sets(steps: Steps, values: Cells, threshold: float, block: int) -> Iterator[Units]:
    """Sets of two ranks to half of all that came together after the others, by blocks of steps.

    A block of so many steps names a set when its ranks' medians lie beyond all others' by more than
    the threshold. Values are seconds, [ranks, steps]; NaN where unknown.
    """
    num_ranks, seen = len(values), set[bytes]()
    half = num_ranks // 2
    if half <= 1:
        return
    # Any of the blocks could have chosen a set of any size, so a test must correct for all.
    num_candidates = float(values.shape[1] * half)
    for begin in range(0, values.shape[1] - block + 1, block):
        medians = nan_stats.median(values[:, begin : begin + block], axis=1)
        # An unknown rank is put next to the lowest one, where it makes no gap.
        lowest = nan_stats.number(nan_stats.lowest(medians, axis=0)) or 0.0
        medians = np.nan_to_num(medians, nan=lowest)
        order = np.argsort(-medians, kind="stable")
        gaps = medians[order[:half]] - medians[order[1 : half + 1]]
        size = int(np.argmax(np.nan_to_num(gaps))) + 1
        unit_of = np.where(np.isin(np.arange(num_ranks), order[:size]), 0, -1)
        if size > 1 and gaps[size - 1] > threshold and unit_of.tobytes() not in seen:
            seen.add(unit_of.tobytes())
            name = ", ".join(str(steps.ranks[row]) for row in np.flatnonzero(unit_of == 0))
            yield Units(kind="ranks", names=(name,), unit_of=unit_of, num_candidates=num_candidates)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """The figures that verdicts rest on: seconds, [ranks, steps] where nothing else stands.

    Attributes:
        own_work: own work of all phases, with waits for a core, which nobody knows from work that
            cold caches make longer.
        waits: for other ranks; NaN where they compare with none.
        unheld_waits: the same as if no rank had been stopped or had collected garbage, which then
            waits so much longer.
        planned: checkpoint and evaluation beyond the rank that had least of them.
        rank_margin: by how much each rank kept all others waiting, as ``margin_of`` has it.
        step_seconds: duration of each step, median over the ranks [steps].
        job_seconds: how long each step took the job: that of the slowest rank where times are
            the ranks' own, else ``step_seconds`` [steps].
        covered_seconds: wall time of all steps.
    """

    account: Account
    own_work: Matrix
    waits: Matrix
    unheld_waits: Matrix
    planned: Matrix
    rank_margin: Margin
    step_seconds: Matrix
    job_seconds: Matrix
    covered_seconds: float

    @property
    def median_step_seconds(self) -> float:
        """Median duration of a step."""
        return float(nan_stats.median(self.step_seconds))

    @cached_property
    def lateness(self) -> Difference:
        """Longest wait of all ranks minus the own one: seconds, [ranks, steps]."""
        longest = nan_stats.highest(self.waits, axis=0)
        return Difference(np.broadcast_to(longest, self.waits.shape), self.waits)

    @cached_property
    def beyond_others(self) -> Cells:
        """How much less each rank waited than the others: seconds, [ranks, steps]."""
        return beyond_others(negative(self.waits))

    @cached_property
    def usual_by_owner(self) -> dict[str, Matrix]:
        """What is usual of each owner of the account: seconds, [steps].

        Of what is measured that is the least of any rank, of work what half of them take.
        """
        usual = {}
        for name, values in self.account.owners.items():
            is_typical = name in self.account.own and len(values) > _MIN_TYPICAL
            reduce = nan_stats.median if is_typical else nan_stats.lowest
            usual[name] = reduce(values, axis=0)
        return usual

    @property
    def is_crowded(self) -> bool:
        """Whether waits for a core make up a share of the run in which they may hide who is slow.

        Nobody knows then into which phase a wait fell, and who takes cores takes caches too.
        """
        return self.account.queued_ratio >= MIN_EFFECT_RATIO

    @property
    def tolerated_loss_seconds(self) -> float:
        """What a healthy rank may lose by its own work where other processes take its cores."""
        queued = 0.0 if self.account.queued is None else float(np.nansum(self.account.queued))
        return _MAX_LOST_BESIDE * queued / len(self.waits)

    @property
    def threshold(self) -> float:
        """Margin in seconds over which a rank is late in a step."""
        return MIN_EFFECT_RATIO * self.median_step_seconds

    @property
    def noise_threshold(self) -> float:
        """The same, and beyond the noise of own work."""
        sampled = total_of(map(sample_rows, self.account.own.values()))
        return max(self.threshold, noise_limit(sampled))


def score(steps: Steps, *, own_times: bool = False) -> Scores:
    """Scores all ranks of an attempt; ``own_times`` as in ``Recording``."""
    account, took_part = divide(steps), steps.took_part
    # Where no collective was recorded, waits compare as far as another rank's work explains them.
    is_hidden = ~took_part.any(axis=0) & (account.waited > 0).any(axis=0)
    is_known = took_part | (is_hidden & ~np.isnan(steps.seconds))
    waits = account.waited if is_known.all() else np.where(is_known, account.waited, np.nan)
    step_seconds = nan_stats.median(steps.seconds, axis=0)
    unheld = total_of([waits, *(account.host[name] for name in HELD if name in account.host)])
    queued = [account.host["queued"]] if "queued" in account.host else []
    planned = _planned(account)
    job_seconds = nan_stats.highest(steps.seconds, axis=0) if own_times else step_seconds
    return Scores(
        account=account,
        own_work=total_of([*account.own.values(), *queued]),
        waits=waits,
        unheld_waits=unheld,
        planned=planned,
        rank_margin=margin_of(single_ranks(steps), unheld, planned),
        step_seconds=step_seconds,
        job_seconds=job_seconds,
        # A column of means covers several steps, and so do its seconds.
        covered_seconds=float(np.nansum(steps.sum_over_columns(job_seconds))),
    )


def _planned(account: Account) -> Matrix:
    total = total_of(account.planned.values())
    if not np.any(total > 0):
        return zeros(total.shape)
    own = np.nan_to_num(total)
    beyond: Matrix = own - own.min(axis=0, initial=np.inf)
    # A loop may write its checkpoint in the step that it delays, or after the last collective of
    # the step before.
    return np.maximum(beyond, np.pad(beyond, ((0, 0), (1, 0)))[:, :-1])


def margin_of(units: Units, waits: Matrix, planned: Matrix) -> Margin:
    """By how much each unit kept all others waiting: their shortest wait minus its longest.

    Waits and planned work are seconds, [ranks, steps]; the margin is [units, steps], NaN where
    either wait is unknown, or where planned work explains the lateness.
    """
    margin = units.margin(negative(waits))
    # No other unit has a margin over zero.
    planned = units.extremes(planned)[0][margin.latest, np.arange(waits.shape[1])]
    is_planned = (margin.of_latest > 0) & (planned >= _PLANNED_SHARE * margin.of_latest)
    return replace(margin, of_latest=np.where(is_planned, np.nan, margin.of_latest))


def last_share(margin: Cells, columns: slice = slice(None)) -> Matrix:
    """Share of the steps in which each unit came after all others [units], by its margin."""
    blocks = (margin[rows, columns] for rows in blocks_of_rows(margin))
    shares = (nan_stats.mean(np.where(np.isnan(b), np.nan, b > 0), axis=1) for b in blocks)
    return np.concatenate([np.empty(0), *shares])


def excess(values: Cells, rows: list[int]) -> Matrix:
    """Mean of some rows [ranks, steps] beyond the median of the other rows [steps]."""
    beyond: Matrix = nan_stats.mean(values[rows, :], axis=0) - medians(values, rows)
    return beyond


def slow_phase(
    phases: Mapping[str, Matrix], rows: list[int], columns: slice | Integers, late_seconds: float
) -> tuple[str | None, float | None]:
    """The phase of some rows that is most beyond the others', and by how many seconds a step.

    It must explain a share of the median lateness, else both are None.
    """
    # Medians, so that a single pause in another phase does not outweigh what is steady.
    beyond = {
        name: float(nan_stats.median(excess(values[:, columns], rows)))
        for name, values in phases.items()
    }
    phase = max(beyond, key=lambda name: np.nan_to_num(beyond[name], nan=-np.inf))
    if not beyond[phase] >= _MIN_PHASE_SHARE * late_seconds:
        return None, None
    return phase, beyond[phase]


def beyond_usual(own_work: Matrix, slow: Flags | None = None) -> Difference:
    """Own work beyond what is usual for the rank: seconds, [ranks, steps].

    Cells that are ``slow`` are not usual [ranks, steps]; a rank with few others counts whole.
    """
    usual = np.array(nan_stats.quantile(own_work, USUAL_QUANTILE, axis=1))
    if slow is not None:
        rows = np.flatnonzero(slow.any(axis=1) & ~(slow.mean(axis=1) > MOST_SLOW))
        usual_work = np.where(slow[rows], np.nan, own_work[rows])
        usual[rows] = nan_stats.quantile(usual_work, USUAL_QUANTILE, axis=1)
    return Difference(own_work, np.broadcast_to(usual[:, None], own_work.shape))
