"""Who may be late: ranks, and the groups of ranks that the mesh and the nodes make.

A unit is late in a step when all of its ranks come after all others. By noise at most one rank
does so in a step, and at most one group of a kind, however many there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.steps import Steps

_MANY = 64
_AXES = {"pp": "pipeline stage", "dp": "data-parallel replica", "ep": "expert group"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Units:
    """Units of one kind, in which each rank has one place at most.

    Attributes:
        kind: ``rank``, ``node``, ``pipeline stage`` and the like, or ``ranks`` for a set.
        names: of the units.
        place: unit of each row, -1 for a row in none [ranks].
        chosen: among so many units, had the recording itself not chosen them.
    """

    kind: str
    names: tuple[str, ...]
    place: NDArray[np.int64]
    chosen: float = 0.0

    def rows(self, unit: int) -> list[int]:
        """Rows of a unit's ranks."""
        return [int(row) for row in np.flatnonzero(self.place == unit)]

    def margin(self, values: Matrix) -> Matrix:
        """Smallest value of each unit beyond the largest of all other ranks [units x steps]."""
        highest, lowest = self._extremes(values)
        margin: Matrix = lowest - _highest_of_others(highest)[: len(self.names)]
        return np.where(np.isfinite(margin), margin, np.nan)

    def deviation(self, values: Matrix) -> Matrix:
        """Value of each single rank beyond the median of all others [ranks x steps].

        Among many ranks the median of all is as good, and quicker.
        """
        if len(values) > _MANY:
            return values - nan_stats.median(values, axis=0)
        if np.isnan(values).any():
            rows = range(len(values))
            return values - [
                nan_stats.median(np.delete(values, row, axis=0), axis=0) for row in rows
            ]
        order, others = np.sort(values, axis=0), len(values) - 1
        middle = np.zeros_like(values)
        for at in ((others - 1) // 2, others // 2):
            middle += np.where(values <= order[at], order[at + 1], order[at]) / 2
        deviation: Matrix = values - middle
        return deviation

    def cost(self, values: Matrix, unit: int) -> Matrix:
        """Largest value of a unit beyond the largest of the others, or zero [steps]."""
        inside = self.place == unit
        own = np.max(np.nan_to_num(values[inside], nan=-np.inf), axis=0)
        others = np.max(np.nan_to_num(values[~inside], nan=-np.inf), axis=0)
        beyond = np.where(np.isfinite(own) & np.isfinite(others), own - others, 0.0)
        return np.maximum(beyond, 0.0)

    def _extremes(self, values: Matrix) -> tuple[Matrix, Matrix]:
        """Highest value of each unit, ranks in none as one more; and lowest of each unit."""
        if self.kind == "rank":
            return np.where(np.isnan(values), -np.inf, values), values
        shape = (len(self.names) + 1, values.shape[1])
        highest, lowest = np.full(shape, -np.inf), np.full(shape, np.inf)
        order = np.argsort(self.place, kind="stable")
        places, begins = np.unique(self.place[order], return_index=True)
        inside = values[order]
        unknown = np.isnan(inside)
        highest[places] = np.maximum.reduceat(np.where(unknown, -np.inf, inside), begins)
        lowest[places] = np.minimum.reduceat(np.where(unknown, np.inf, inside), begins)
        return highest, np.where(np.isinf(lowest), np.nan, lowest)[:-1]


def single_ranks(steps: Steps) -> Units:
    """Every rank by itself."""
    count = len(steps.members)
    names = tuple(str(rank) for rank in steps.ranks)
    return Units(kind="rank", names=names, place=np.arange(count))


def groups(steps: Steps) -> Iterator[Units]:
    """Nodes, pipeline stages, replicas and experts, where there are two or more of them."""
    nodes = [member.node for member in steps.members]
    yield from _grouped("node", nodes)
    for axis, kind in _AXES.items():
        at = [member.mesh.get(axis, -1) for member in steps.members]
        yield from _grouped(kind, [f"{kind} {place}" if place >= 0 else "" for place in at])


def _grouped(kind: str, names: Sequence[str]) -> Iterator[Units]:
    known = tuple(dict.fromkeys(name for name in names if name))
    place = {name: at for at, name in enumerate(known)}
    if 1 < len(known) < len(names):
        at = np.array([place.get(name, -1) for name in names])
        yield Units(kind=kind, names=known, place=at)


def gapped_sets(steps: Steps, values: Matrix, threshold: float, block: int) -> Iterator[Units]:
    """Sets of two ranks to half of all that came together after the others, by blocks of steps.

    A block names a set when its ranks' medians lie beyond all others' by more than the threshold.
    """
    count, seen = len(values), set[bytes]()
    half = count // 2
    if half <= 1:
        return
    for begin in range(0, values.shape[1] - block + 1, block):
        middle = nan_stats.median(values[:, begin : begin + block], axis=1)
        # A rank of which nothing is known stands with the last, where it makes no gap.
        lowest = nan_stats.number(nan_stats.lowest(middle, axis=0)) or 0.0
        middle = np.nan_to_num(middle, nan=lowest)
        order = np.argsort(-middle, kind="stable")
        gaps = middle[order[:half]] - middle[order[1 : half + 1]]
        size = int(np.argmax(np.nan_to_num(gaps))) + 1
        place = np.where(np.isin(np.arange(count), order[:size]), 0, -1)
        if size > 1 and gaps[size - 1] > threshold and place.tobytes() not in seen:
            seen.add(place.tobytes())
            chosen = float(values.shape[1] * half)
            named = ", ".join(str(steps.ranks[row]) for row in np.flatnonzero(place == 0))
            yield Units(kind="ranks", names=(named,), place=place, chosen=chosen)


def _highest_of_others(highest: Matrix) -> Matrix:
    """For each unit the highest value of all other units at that step."""
    if len(highest) <= 1:
        return np.full_like(highest, -np.inf)
    top = np.argmax(highest, axis=0)
    first, second = -np.partition(-highest, 1, axis=0)[:2]
    others: Matrix = np.where(np.arange(len(highest))[:, None] == top, second, first)
    return others
