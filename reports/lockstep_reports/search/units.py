"""Units that may be late: ranks, and the groups of ranks that the mesh and the nodes define.

A unit is late in a step when all of its ranks come after all others. By noise at most one rank
does so in a step, and at most one group of a kind, however many there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import smallest_of_others

# Among more ranks than these the median of all is as good as that of the others, and quicker.
_MANY_RANKS = 64
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

    def rows(self, unit: int) -> tuple[int, ...]:
        """Rows of a unit's ranks."""
        return tuple(np.flatnonzero(self.unit_of == unit).tolist())

    def margin(self, values: Matrix) -> Matrix:
        """Smallest value of each unit beyond the largest of all other ranks.

        Args:
            values: seconds, [ranks, steps]; NaN where unknown.

        Returns:
            Seconds, [units, steps]; NaN where a unit or all others are unknown.
        """
        highest, lowest = self._extremes(values)
        # Smallest of the negatives: the largest.
        margin: Matrix = smallest_of_others(-highest)[: len(self.names)]
        margin += lowest
        margin[~np.isfinite(margin)] = np.nan
        return margin

    def cost(self, values: Matrix, unit: int) -> Matrix:
        """Largest value of a unit beyond the largest of the others, or zero: seconds, [steps]."""
        inside = self.unit_of == unit
        own = np.max(np.nan_to_num(values[inside], nan=-np.inf), axis=0)
        others = np.max(np.nan_to_num(values[~inside], nan=-np.inf), axis=0)
        beyond: Matrix = np.zeros_like(own)
        is_known = np.isfinite(own) & np.isfinite(others)
        np.subtract(own, others, out=beyond, where=is_known)
        return beyond.clip(min=0.0)

    def _extremes(self, values: Matrix) -> tuple[Matrix, Matrix]:
        """Highest value [units + 1, steps] and lowest value [units, steps] of each unit.

        The last row of the highest values is that of the ranks in no unit.
        """
        if self.kind == "rank":
            is_unknown = np.isnan(values)
            return np.where(is_unknown, -np.inf, values) if is_unknown.any() else values, values
        shape = (len(self.names) + 1, values.shape[1])
        highest, lowest = np.full(shape, -np.inf), np.full(shape, np.inf)
        order = np.argsort(self.unit_of, kind="stable")
        # Index -1, of ranks in no unit, is the last row.
        units, begins = np.unique(self.unit_of[order], return_index=True)
        inside = values[order]
        is_unknown = np.isnan(inside)
        highest[units] = np.maximum.reduceat(np.where(is_unknown, -np.inf, inside), begins)
        lowest[units] = np.minimum.reduceat(np.where(is_unknown, np.inf, inside), begins)
        return highest, np.where(np.isinf(lowest), np.nan, lowest)[:-1]


def beyond_others(values: Matrix) -> Matrix:
    """Value of each single rank beyond the median of all others: [ranks, steps]."""
    if len(values) > _MANY_RANKS:
        return values - nan_stats.median(values, axis=0)
    if np.isnan(values).any():
        rows = range(len(values))
        return values - [nan_stats.median(np.delete(values, row, axis=0), axis=0) for row in rows]
    return beyond_median_of_others(values)


def beyond_median_of_others(values: Matrix) -> Matrix:
    """Each value beyond the median of all others: [two members or more, ...], without NaN."""
    # Without one value of a sorted column, all values above it move down by one, so a median of
    # the others needs no sort of its own.
    order, num_others = np.sort(values, axis=0), len(values) - 1
    median = np.zeros_like(values)
    for index in ((num_others - 1) // 2, num_others // 2):
        median += np.where(values <= order[index], order[index + 1], order[index]) / 2
    beyond: Matrix = values - median
    return beyond


def single_ranks(steps: Steps) -> Units:
    """Every rank as a unit of its own."""
    count = len(steps.members)
    names = tuple(str(rank) for rank in steps.ranks)
    return Units(kind="rank", names=names, unit_of=np.arange(count))


def groups(steps: Steps) -> Iterator[Units]:
    """Nodes, pipeline stages, replicas and experts, where there are two or more of them."""
    nodes = [member.node for member in steps.members]
    yield from _grouped("node", nodes)
    for axis, kind in _AXES.items():
        coordinates = [member.mesh.get(axis, -1) for member in steps.members]
        yield from _grouped(kind, [f"{kind} {c}" if c >= 0 else "" for c in coordinates])


def _grouped(kind: str, names: Sequence[str]) -> Iterator[Units]:
    """Units by the name of each rank's group; an empty name is of none."""
    unique = tuple(dict.fromkeys(name for name in names if name))
    index = {name: number for number, name in enumerate(unique)}
    if 1 < len(unique) < len(names):
        unit_of = np.array([index.get(name, -1) for name in names])
        yield Units(kind=kind, names=unique, unit_of=unit_of)


def gapped_sets(steps: Steps, values: Matrix, threshold: float, block: int) -> Iterator[Units]:
    """Sets of two ranks to half of all that came together after the others, by blocks of steps.

    A block names a set when its ranks' medians lie beyond all others' by more than the threshold.

    Args:
        steps: whose ranks they are.
        values: seconds, [ranks, steps]; NaN where unknown.
        threshold: in seconds.
        block: steps of a block.
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
