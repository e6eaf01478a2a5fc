"""Steps of a job that marks none: the period of the collectives that one of its ranks launched.

A step begins at its anchor, a collective that every step has once. An anchor explains the sequence
as far as the same kinds of collectives lie between two of its occurrences as often as usual; their
order does not count, for communicators interleave as they like. Of the anchors that explain the
most of it the most frequent one ends the shortest period, such as a micro-batch; rarer anchors
replace it while they explain collectives that no shorter period has.

What no sequence tells:

- Micro-batches that all end alike, without a collective of the whole step, are steps.
- A small collective in every n-th period is one that ends n micro-batches, or the logging of every
  n-th step: the second where n is over 64 or a multiple of 5, as people log and evaluate.
- A period needs four repeats, and must be six in ten of the periods.
"""

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

_MIN_REPEATS = 4
_MIN_USUAL_RATIO, _MIN_EXPLAINED_RATIO = 0.6, 0.5
# Sizes recur where a tensor has one, and come at random where a batch decides.
_MIN_REGULAR_RATIO, _CLUSTER_WIDTH = 0.8, 1.25
_COUNT_TOLERANCE = 2  # a kind may come by one in so many more or less often
_USUAL_RATIO = 0.75  # of the collectives of a step, that it has as usual
_MAX_CANDIDATES_OF_A_COUNT = 3
# A period that explains less may be a part of one, of which a rarer anchor explains so much more.
_WHOLE_RATIO, _MIN_GAIN_RATIO = 0.75, 0.1
_MAX_LOSS_RATIO = 0.25  # twice what goes unexplained where one anchor of ten was not recorded
# Collectives with so much of the bytes are of the step, whatever the distance of their anchor.
_MIN_TRAFFIC_RATIO = 1e-4
_LONG_GAP = 2.0  # times the median
_LONG_RUN = 4  # shorter ones come of records that lack
_MAX_MICRO_BATCHES, _USUAL_INTERVAL = 64, 5


class Collective(NamedTuple):
    """What a rank launched: where, which function, how much in bytes."""

    communicator: Hashable
    function: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """The steps of a sequence of collectives.

    Attributes:
        starts: index of the first collective of each step; the last one may be incomplete.
        length: collectives that a step usually has.
        is_usual: whether a step, the last one aside, has about what all have; others hold an
            evaluation, or lack records [starts - 1].
        explained_ratio: share of the sequence that recurs in steps, the mean of its counts and its
            bytes.
    """

    starts: tuple[int, ...]
    length: int
    is_usual: tuple[bool, ...]
    explained_ratio: float


@dataclass(frozen=True, slots=True)
class _Sequence:
    """A sequence of kinds.

    Attributes:
        kinds: numbers of kinds [collectives].
        weight: by kind what one of it weighs: its share of the collectives and of their bytes.
        bytes_ratio: by kind the share of all bytes.
        family: by kind the function in its communicator.
    """

    kinds: list[int]
    weight: dict[int, float]
    bytes_ratio: dict[int, float]
    family: dict[int, int]


@dataclass(frozen=True, slots=True)
class _Partition:
    """A sequence cut before the ``positions`` of an anchor.

    Attributes:
        usual: how often each kind is usually between two of them; absent where it is not.
        is_usual: whether what lies between two of them is so [positions - 1].
        is_complete: whether it has what is usual, whatever else there is [positions - 1].
        explained: share of the weight between the first and the last that is; 0 where these leave
            out most of the sequence.
    """

    positions: list[int]
    usual: dict[int, int]
    is_usual: list[bool]
    is_complete: list[bool]
    explained: float

    @property
    def is_period(self) -> bool:
        """Whether it recurs."""
        is_explained = self.explained >= _MIN_EXPLAINED_RATIO
        return is_explained and self.usual_ratio >= _MIN_USUAL_RATIO

    @property
    def usual_ratio(self) -> float:
        """Share of what lies between two positions that is as usual."""
        return sum(self.is_usual) / max(1, len(self.is_usual))


def find_period(
    collectives: Sequence[Collective], gaps: Sequence[float] | None = None
) -> Period | None:
    """The steps of one rank's collectives in the order of their launch; None without a period.

    ``gaps`` are the times without a collective before each, in any unit: of a period any
    collective may be the first, and the one after the longest gap is. Where all collectives are
    alike, those after long gaps are another kind.
    """
    sequence = _coded(collectives)
    best = _find_partition(sequence)
    if gaps and best is not None and len(best.positions) == len(collectives):
        after_gap = _mark_long_gaps(sequence, gaps)
        found = _find_partition(after_gap)
        if found is not None and found.explained >= _WHOLE_RATIO:
            sequence, best = after_gap, found
    if best is None:
        return None
    best = _rotate(sequence, best, gaps)
    lengths = [end - begin for begin, end in pairwise(best.positions)]
    return Period(
        starts=tuple(best.positions),
        length=round(statistics.median(lengths)),
        is_usual=tuple(best.is_usual),
        explained_ratio=best.explained,
    )


def _find_partition(sequence: _Sequence) -> _Partition | None:
    """The sequence cut into periods; None without one."""
    partitions = [_divide(sequence, positions) for positions in _candidates(sequence)]
    partitions = sorted(
        (partition for partition in partitions if partition.is_period),
        key=lambda partition: -len(partition.positions),
    )
    best = partitions[0] if partitions else None
    for partition in partitions[1:]:
        if best is not None and _is_outer(sequence, best, partition):
            best = partition
    return best


def _mark_long_gaps(sequence: _Sequence, gaps: Sequence[float]) -> _Sequence:
    """The sequence, of one kind, with another kind for what comes after a long gap."""
    (kind,) = sequence.weight
    usual = statistics.median(gaps)
    kinds = [kind + (gap > _LONG_GAP * usual) for gap in gaps]
    weight, ratio = 2 / len(kinds), 1 / len(kinds)
    counts = Counter(kinds)
    return _Sequence(
        kinds,
        dict.fromkeys(counts, weight),
        {each: count * ratio for each, count in counts.items()},
        dict.fromkeys(counts, sequence.family[kind]),
    )


def _coded(collectives: Sequence[Collective]) -> _Sequence:
    """The sequence as numbers of kinds; sizes that do not recur are no part of a kind."""
    families: dict[Hashable, int] = {}
    of_family: dict[int, list[int]] = defaultdict(list)
    family_of: list[int] = []
    for communicator, function, _ in collectives:
        family = families.setdefault((communicator, function), len(families))
        of_family[family].append(len(family_of))
        family_of.append(family)
    codes: dict[tuple[int, int | None], int] = {}
    kinds = [0] * len(collectives)
    for family, indices in of_family.items():
        sizes = [collectives[index].size_bytes for index in indices]
        regular = _regular(sizes)
        for index, size in zip(indices, sizes, strict=True):
            key = (family, size if size in regular else None)
            kinds[index] = codes.setdefault(key, len(codes))
    total = sum(max(0, c.size_bytes) for c in collectives) or 1
    ratios: dict[int, float] = defaultdict(float)
    for kind, collective in zip(kinds, collectives, strict=True):
        ratios[kind] += max(0, collective.size_bytes) / total
    counts = Counter(kinds)
    return _Sequence(
        kinds,
        {kind: 1 / len(kinds) + ratios[kind] / count for kind, count in counts.items()},
        ratios,
        {code: family for (family, _), code in codes.items()},
    )


def _regular(sizes: list[int]) -> set[int]:
    """The sizes that recur at one or two distances among those of a function in a communicator."""
    begins: dict[int, list[int]] = defaultdict(list)
    for index, size in enumerate(sizes):
        if not index or size != sizes[index - 1]:
            begins[size].append(index)
    counts = Counter(sizes)
    distances = {size: [b - a for a, b in pairwise(found)] for size, found in begins.items()}
    # Sizes that came two or three times each recur if all of them do so at the same distance.
    pooled = [each for found in distances.values() for each in found]
    least = 1 if _are_alike(pooled, _remove_cluster(pooled)) else _MIN_REPEATS - 1
    return {
        size
        for size, found in distances.items()
        if counts[size] >= _MIN_REGULAR_RATIO * len(sizes)
        or (len(found) >= least and _are_alike(found, _remove_cluster(_remove_cluster(found))))
    }


def _are_alike(distances: list[int], rest: list[int]) -> bool:
    return len(rest) <= (1 - _MIN_REGULAR_RATIO) * len(distances)


def _remove_cluster(distances: list[int]) -> list[int]:
    """Distances, ascending, without the most that are about the same."""
    distances = sorted(distances)
    ends = [bisect_right(distances, distance * _CLUSTER_WIDTH) for distance in distances]
    begin = max(range(len(ends)), key=lambda i: ends[i] - i, default=0)
    return [*distances[:begin], *distances[ends[begin] :]] if ends else distances


def _candidates(sequence: _Sequence) -> Iterable[list[int]]:
    """Positions that might each begin a step: of a kind, and of a change between kinds.

    A few of about the same number stand for all: kinds of the same period explain the same. Changes
    are those within a communicator and function, where the order is the program's; a run of
    one kind is one.
    """
    positions: dict[Hashable, list[int]] = defaultdict(list)
    for index, kind in enumerate(sequence.kinds):
        positions[kind].append(index)
    runs = _runs(sequence.kinds)
    previous = None
    for begin, run in runs:
        positions["run", run].append(begin)
        positions["change", previous, run].append(begin)
        previous = run
    by_count: dict[int, list[list[int]]] = defaultdict(list)
    for found in positions.values():
        if len(found) >= _MIN_REPEATS:
            by_count[round(8 * math.log2(len(found)))].append(found)
    for alike in by_count.values():
        alike.sort(key=lambda found: (-len(found), found[0]))
        yield from alike[:_MAX_CANDIDATES_OF_A_COUNT]


def _runs(kinds: list[int]) -> list[tuple[int, tuple[int, bool]]]:
    """Begin of each run of a kind, with the kind and whether the run is long."""
    begins = [i for i, kind in enumerate(kinds) if not i or kind != kinds[i - 1]]
    ends = [*begins, len(kinds)][1:]
    return [
        (begin, (kinds[begin], end - begin >= _LONG_RUN))
        for begin, end in zip(begins, ends, strict=True)
    ]


def _divide(sequence: _Sequence, positions: list[int]) -> _Partition:
    """The sequence cut before these positions."""
    kinds = sequence.kinds
    spans = list(pairwise(positions))
    counts_of = [Counter(kinds[begin:end]) for begin, end in spans]
    by_kind: dict[int, list[int]] = defaultdict(list)
    for counts in counts_of:
        for kind, count in counts.items():
            by_kind[kind].append(count)
    usual = {}
    for kind, counts_of_kind in by_kind.items():
        absent = len(spans) - len(counts_of_kind)
        if absent <= (len(spans) - 1) // 2:
            usual[kind] = sorted(counts_of_kind)[(len(spans) - 1) // 2 - absent]
    expected, weight = sum(usual.values()), sequence.weight
    explained, is_usual, is_complete = 0.0, [], []
    for counts in counts_of:
        agreeing = [
            kind
            for kind, count in counts.items()
            if kind in usual and abs(count - usual[kind]) <= usual[kind] // _COUNT_TOLERANCE
        ]
        explained += sum(weight[kind] * counts[kind] for kind in agreeing)
        agreed = sum(counts[kind] for kind in agreeing)
        is_complete.append(sum(usual[kind] for kind in agreeing) >= _USUAL_RATIO * expected)
        is_usual.append(is_complete[-1] and agreed >= _USUAL_RATIO * counts.total())
    within = sum(weight[kind] for kind in kinds[positions[0] : positions[-1]])
    total = sum(weight[kind] for kind in kinds)
    is_of_most = within >= _MIN_EXPLAINED_RATIO * total
    return _Partition(
        positions, usual, is_usual, is_complete, explained / within if is_of_most else 0.0
    )


def _is_outer(sequence: _Sequence, inner: _Partition, outer: _Partition) -> bool:
    """Whether the period of a rarer anchor is the step, of which the inner one is a part."""
    first, last = (bisect_left(inner.positions, outer.positions[end]) for end in (0, -1))
    every = round(sum(inner.is_complete[first:last]) / (len(outer.positions) - 1))
    gain = outer.explained - inner.explained
    if every <= 1 or gain < -_MAX_LOSS_RATIO:
        return outer.usual_ratio > inner.usual_ratio + _MIN_GAIN_RATIO
    added = outer.usual.keys() - inner.usual.keys()
    families = {sequence.family[kind] for kind in inner.usual}
    traffic = sum(sequence.bytes_ratio[kind] for kind in added)
    is_new = any(sequence.family[kind] not in families for kind in added)
    is_single = sum(inner.usual.values()) == 1
    if inner.explained < _WHOLE_RATIO and gain >= _MIN_GAIN_RATIO:
        return True
    if traffic >= _MIN_TRAFFIC_RATIO and (is_new or is_single):
        return True
    return bool(added) and every <= _MAX_MICRO_BATCHES and every % _USUAL_INTERVAL != 0


def _rotate(sequence: _Sequence, partition: _Partition, gaps: Sequence[float] | None) -> _Partition:
    """The partition by the collective that begins the period, of those that it has once."""
    positions: dict[int, list[int]] = defaultdict(list)
    for index, kind in enumerate(sequence.kinds):
        if partition.usual.get(kind) == 1:
            positions[kind].append(index)

    def precedence(found: list[int]) -> tuple[float, int]:
        gap = 0.0 if gaps is None else statistics.median(gaps[index] for index in found)
        return (-gap, found[0])

    for found in sorted(positions.values(), key=precedence)[:_MAX_CANDIDATES_OF_A_COUNT]:
        rotated = _divide(sequence, found)
        if (
            rotated.is_period
            and rotated.explained >= partition.explained - _MIN_GAIN_RATIO
            and rotated.usual_ratio >= partition.usual_ratio - _MIN_GAIN_RATIO
        ):
            return rotated
    return partition
