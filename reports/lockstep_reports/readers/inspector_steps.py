"""Steps of a job from the operations that its ranks recorded: when each began, and who waited.

All ranks leave a collective together, so the ends of the same one put their clocks on one; the
steps are the period of one rank's collectives, and every collective is of one step for all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lockstep_records.nccl.periods import Collective, find_period
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.recording.steps import MAX_CELLS
from lockstep_reports.wording import percent, plural

_MAX_PERIOD_COLLECTIVES = 1 << 17
_MAX_SAMPLES, _MAX_ROUNDS, _CONVERGED_SECONDS = 64, 20, 1e-5
# Of a step's operations, that a rank may lack before its time in them is unknown.
_MAX_LOST_RATIO = 0.25
_MIN_RECORDED_RATIO = 0.3
# A wait of a second beside work shortens the next gap by one, else by none.
_OVERLAPPED_SLOPE, _MIN_SLOPE_STEPS, _MIN_MEMBERS, _MAX_POSITIONS = -0.5, 10, 4, 1 << 10
_NO_GAP_SECONDS = 1e-4
_MIN_LEAD_RATIO = 0.6
_MAX_BACKWARDS_SECONDS = 1.0
_MAX_RECORDS = 1 << 28  # of a communicator, were all of them there


class TooFewError(ValueError):
    """Too few operations were recorded to compare ranks."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Operations:
    """Operations of all ranks, by rank and in the order in which each wrote them.

    Attributes:
        names: of the communicators.
        families: index of the communicator, and function.
        row: of the rank [operations]; ``family`` likewise is the index of its family.
        sequence: number among those of the family [operations].
        is_collective: else it is a send or a receive [operations].
        seconds: duration with the wait for others [operations].
        ended, written: when its end was noticed and when it was written, by the clock of its host:
            seconds since the epoch [operations]; NaN where unknown.
        is_sample: whether it is of the ranks by whose median a collective ended [operations].
    """

    names: tuple[str, ...]
    families: tuple[tuple[int, str], ...]
    row: Integers
    family: Integers
    sequence: Integers
    size_bytes: Integers
    is_collective: Flags
    seconds: Matrix
    ended: Matrix
    written: Matrix
    is_sample: Flags

    @property
    def communicator(self) -> Integers:
        """Index of each operation's communicator [operations]."""
        of_family = np.array([communicator for communicator, _ in self.families])
        return np.asarray(of_family[self.family])


class FoundSteps(NamedTuple):
    """Steps that a recording shows.

    Attributes:
        seconds: duration of each step [ranks, steps]; NaN where the rank's records lack.
        sync: time in operations, in the same way.
        start: begin of the step by the rank's own clock, in the same way.
        last_arrival: end of its last operation by the rank's own clock, less ``sync``.
        ends: by the common clock the end of each rank's last collective [ranks].
    """

    seconds: Matrix
    sync: Matrix
    start: Matrix
    last_arrival: Matrix
    ends: Matrix


def no_steps(num_ranks: int) -> FoundSteps:
    """Of a recording that shows none."""
    none = np.empty((num_ranks, 0))
    return FoundSteps(none, none, none, none, ends=np.full(num_ranks, np.nan))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Keys:
    """Collectives that are the same for all ranks.

    Attributes:
        of: index of each operation's collective, -1 for a send or a receive [operations].
        family: of each collective [collectives]; ``size_bytes`` likewise, and ``shortest`` is the
            shortest duration of any rank in seconds.
        time: when it ended, by one clock: seconds since the epoch [collectives].
    """

    of: Integers
    family: Integers
    size_bytes: Integers
    shortest: Matrix
    time: Matrix


def find_steps(operations: Operations, num_ranks: int) -> FoundSteps:
    """The steps of all ranks.

    Raises:
        TooFewError: they have no period, or most operations are missing.
        ValueError: more ranks and steps than a report holds.
    """
    is_traced = bool(np.count_nonzero(~np.isnan(operations.ended)) > len(operations.ended) / 2)
    _check_recorded(operations)
    time = _times(operations, is_traced=is_traced)
    keys, offsets = _align(operations, time, num_ranks)
    bounds, end = _bounds(operations, keys, is_traced=is_traced)
    shape = num_ranks, len(bounds)
    if num_ranks * len(bounds) > MAX_CELLS:
        raise ValueError(f"{num_ranks:,} ranks x {len(bounds):,} steps: give fewer files")
    is_shared = keys.of >= 0
    common = np.where(is_shared, keys.time[keys.of], time - offsets[operations.row])
    ends = np.full(num_ranks, np.nan)
    np.fmax.at(ends, operations.row[is_shared], common[is_shared])
    step_of_key, step = (_steps_at(each, bounds, end) for each in (keys.time, common))
    own = _exposed_seconds(operations, keys, common, step) if is_traced else operations.seconds
    is_inside = step >= 0
    cells = operations.row[is_inside] * len(bounds) + step[is_inside]
    sync = np.zeros(shape)
    np.add.at(sync.reshape(-1), cells, own[is_inside])
    imputed, num_lost, num_expected = _lost(operations, keys, step_of_key, shape)
    is_unknown = num_lost > _MAX_LOST_RATIO * num_expected
    sync = np.where(is_unknown | (num_expected == 0), np.nan, sync + imputed)
    arrival = np.full(shape, np.nan)
    if is_traced:
        np.fmax.at(arrival.reshape(-1), cells, time[is_inside])
    # Without a trace the begins of steps are so inexact that operations may take longer.
    seconds = np.fmax(np.diff(np.append(bounds, end)), nan_stats.highest(sync, axis=0))
    return FoundSteps(
        seconds=np.where(is_unknown, np.nan, seconds),
        sync=sync,
        start=bounds + offsets[:, None],
        last_arrival=arrival - sync,
        ends=ends,
    )


def _steps_at(time: Matrix, bounds: Matrix, end: float) -> Integers:
    """Index of the step of each time; -1 for those of none."""
    return np.where(time > end, -1, np.searchsorted(bounds, time, side="right") - 1)


def _exposed_seconds(operations: Operations, keys: _Keys, ended: Matrix, step: Integers) -> Matrix:
    """Of each operation the time that held up its rank: seconds [operations].

    Not what an earlier operation of the rank covers. Of operations beside which the rank computes,
    or between which it does nothing, only the longest wait counts: the others are parts of it.
    """
    order, exposed = np.empty(len(ended), dtype=np.int64), np.empty(len(ended))
    for first, last in _row_bounds(operations.row):
        own = np.argsort((ended - operations.seconds)[first:last], kind="stable")
        order[first:last] = first + own
        reached = np.append(-np.inf, np.maximum.accumulate(ended[first:last][own])[:-1])
        exposed[first:last] = reached
    end, seconds = ended[order], operations.seconds[order]
    begin, index = end - seconds, np.arange(len(end))
    exposed = np.maximum(end - np.maximum(begin, exposed), 0.0)
    begins = np.append(True, (np.diff(step[order]) != 0) | (np.diff(operations.row) != 0))
    gap = np.append(np.where(begins[1:], np.nan, begin[1:] - end[:-1]), np.nan)
    position = np.minimum(
        index - np.maximum.accumulate(np.where(begins, index, 0)), _MAX_POSITIONS - 1
    )
    of = keys.of[order]
    shortest = np.where(of >= 0, keys.shortest[of], seconds)
    wait = seconds - shortest
    is_sample = operations.is_sample[order]
    group = operations.row * np.int64(_MAX_POSITIONS) + position
    is_beside = _are_overlapped(group, of, is_sample, wait, gap)
    goes_on = is_beside[position] & ~np.isnan(gap) | (gap < _NO_GAP_SECONDS)
    chains = np.flatnonzero(np.append(True, ~goes_on[:-1]))
    least = np.add.reduceat(np.minimum(exposed, shortest), chains)
    held = np.minimum(np.add.reduceat(exposed, chains), least + np.maximum.reduceat(wait, chains))
    result = np.zeros(len(end))
    result[order[np.append(chains[1:], len(end)) - 1]] = held
    return result


def _are_overlapped(
    group: Integers, of: Integers, is_sample: Flags, wait: Matrix, gap: Matrix
) -> Flags:
    """Whether ranks compute beside the operation at each position of a step [positions].

    ``group`` is the rank times the number of positions, and the position [operations].

    Then what a rank waits longer, the gap to its next operation is shorter. Held against each
    other are the changes of each rank from step to step, beyond the median of all, and of the
    ranks the median counts: so no rank that is late, for however long, makes up the answer.
    """
    num_keys = int(of.max()) + 1
    num_members = np.bincount(of[of >= 0], minlength=num_keys)
    chosen = (of >= 0) & is_sample & ~np.isnan(gap) & (num_members[of] >= _MIN_MEMBERS)
    group = group[chosen]
    longer, shorter = (
        _beyond(each[chosen] - _medians(each[chosen], of[chosen], num_keys)[of[chosen]], group)
        for each in (wait, gap)
    )
    counts = np.bincount(group, minlength=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.bincount(group, longer * shorter) / np.bincount(group, longer**2)
    has_slope = np.flatnonzero((counts >= _MIN_SLOPE_STEPS)[: len(slope)] & ~np.isnan(slope))
    median = _medians(slope[has_slope], has_slope % _MAX_POSITIONS, _MAX_POSITIONS)
    return np.asarray(median < _OVERLAPPED_SLOPE)


def _beyond(values: Matrix, group: Integers) -> Matrix:
    """Values less the mean of their group."""
    count, total = np.bincount(group), np.bincount(group, values)
    return values - (total / np.maximum(count, 1))[group]


def _lost(
    operations: Operations, keys: _Keys, step_of_key: Integers, shape: tuple[int, int]
) -> tuple[Matrix, Integers, Integers]:
    """What the ranks did not record of their collectives [ranks, steps].

    Returns the seconds that these usually took the others, their number, and how many there were.
    """
    imputed, lost, expected = (np.zeros(shape, dtype) for dtype in (float, int, int))
    is_shared = keys.of >= 0
    usual = _sampled_medians(operations, operations.seconds, keys.of, len(keys.time))
    of_family = np.array([communicator for communicator, _ in operations.families])
    order = np.argsort(operations.communicator[is_shared], kind="stable")
    row, of = operations.row[is_shared][order], keys.of[is_shared][order]
    communicator = operations.communicator[is_shared][order]
    column_of = np.empty(len(keys.time), dtype=np.int64)
    for begin, end in _row_bounds(communicator):
        columns = np.flatnonzero(
            (of_family[keys.family] == communicator[begin]) & (step_of_key >= 0)
        )
        members, member = np.unique(row[begin:end], return_inverse=True)
        if len(members) * len(columns) > _MAX_RECORDS:
            raise TooFewError(
                f"{plural(len(members), 'rank')} of a communicator recorded {len(columns):,} "
                "collectives, most of them not the same."
            )
        column_of[:] = -1
        column_of[columns] = np.arange(len(columns))
        is_missing = np.ones((len(members), len(columns) + 1), dtype=bool)
        is_missing[member, column_of[of[begin:end]]] = False
        expected[members] += np.bincount(step_of_key[columns], minlength=shape[1])
        rows, missing = np.nonzero(is_missing[:, :-1])
        cells = members[rows], step_of_key[columns[missing]]
        np.add.at(imputed, cells, usual[columns[missing]])
        np.add.at(lost, cells, 1)
    return imputed, lost, expected


def _check_recorded(operations: Operations) -> None:
    """Raises TooFewError where most operations between a rank's first and last are missing."""
    group = operations.row * np.int64(len(operations.families)) + operations.family
    if int(group.max()) >= MAX_CELLS:
        _, group = np.unique(group, return_inverse=True)
    first, last = (np.full(int(group.max()) + 1, end) for end in (1 << 53, -1))
    np.minimum.at(first, group, operations.sequence)
    np.maximum.at(last, group, operations.sequence)
    share = len(group) / (last - first + 1)[last >= 0].sum()
    if share < _MIN_RECORDED_RATIO:
        raise TooFewError(
            f"Of the operations that their numbers count only {percent(share)} were recorded, and "
            "each rank has other ones: make the ring larger (NCCL_INSPECTOR_DUMP_COLL_RING_SIZE) or"
            " dump more often. NCCL 2.28 and 2.29 keep the latest of each dump only."
        )


def _times(operations: Operations, *, is_traced: bool) -> Matrix:
    """When each operation ended, by the clock of its host [operations].

    Without a trace the operations of a communicator that were written together are spread evenly
    over the time since the rank last wrote.
    """
    if is_traced:
        return np.where(np.isnan(operations.ended), operations.written, operations.ended)
    # One dump of a communicator is one run of the file.
    key = np.stack([operations.row, operations.communicator, operations.written])
    begins = np.flatnonzero(np.append(True, np.any(np.diff(key, axis=1) != 0, axis=0)))
    lengths = np.diff(np.append(begins, key.shape[1]))
    nth = np.arange(key.shape[1]) - np.repeat(begins, lengths) + 1
    since = np.empty(key.shape[1])
    for first, last in _row_bounds(operations.row):
        dumps, index = np.unique(operations.written[first:last], return_inverse=True)
        between = np.diff(dumps)
        usual = float(np.median(between)) if len(between) else 1.0
        since[first:last] = np.append(usual, between)[index]
    spacing = since[begins] / lengths
    _, group = np.unique(key[:2, begins], axis=1, return_inverse=True)
    # The last dump has what came since the one before, but not until its end.
    last_run = np.full(int(group.max()) + 1, 0)
    np.maximum.at(last_run, group, np.arange(len(group)))
    usual_spacing = _medians(spacing, group, len(last_run))
    spacing[last_run] = np.minimum(spacing[last_run], usual_spacing)
    spacing = np.repeat(spacing, lengths)
    ended: Matrix = operations.written - since + spacing * nth
    return ended


def _row_bounds(row: Integers) -> Iterator[tuple[int, int]]:
    """First and last operation of each rank."""
    begins = np.flatnonzero(np.append(True, np.diff(row) != 0)).tolist()
    yield from zip(begins, [*begins[1:], len(row)], strict=True)


def _align(operations: Operations, time: Matrix, num_ranks: int) -> tuple[_Keys, Matrix]:
    """The collectives, and by how many seconds the clock of each rank is ahead [ranks]."""
    code = operations.family.astype(np.int64) << 40 | operations.sequence & ((1 << 40) - 1)
    code = np.where(operations.is_collective, code, -1)
    codes, of = np.unique(code, return_inverse=True)
    if codes[0] < 0:
        codes, of = codes[1:], of - 1
    order = np.argsort(of, kind="stable")[np.count_nonzero(of < 0) :]
    if not len(order):
        raise TooFewError("No collective was recorded, only sends and receives.")
    begins = np.flatnonzero(np.append(True, np.diff(of[order]) != 0))
    offsets, family = _offsets(operations, time, of, num_ranks), codes >> 40
    common = _sampled_medians(operations, time - offsets[operations.row], of, len(codes))
    # Those of a family follow each other, whatever clocks say.
    if np.any((np.diff(common) < -_MAX_BACKWARDS_SECONDS) & (np.diff(family) == 0)):
        raise TooFewError("The clocks of most hosts were set back while the Inspector wrote.")
    return _Keys(
        of=of,
        family=family,
        size_bytes=operations.size_bytes[order[begins]],
        shortest=np.minimum.reduceat(operations.seconds[order], begins),
        time=common,
    ), offsets


def _medians(values: Matrix, group: Integers, num_groups: int) -> Matrix:
    """Lower median of the values of each group [groups]; NaN where a group has none."""
    order = np.argsort(values)
    order = order[np.argsort(group[order], kind="stable")]
    counts = np.bincount(group, minlength=num_groups)
    ends = np.cumsum(counts)
    medians = np.full(num_groups, np.nan)
    has_any = counts > 0
    medians[has_any] = values[order[(ends - counts + (counts - 1) // 2)[has_any]]]
    return medians


def _sampled_medians(
    operations: Operations, values: Matrix, of: Integers, num_groups: int
) -> Matrix:
    """Median over the ranks of each collective [collectives]; of a sample where that has all."""
    chosen = operations.is_sample & (of >= 0)
    medians = _medians(values[chosen], of[chosen], num_groups)
    if np.isnan(medians).any():
        chosen = of >= 0
        medians = _medians(values[chosen], of[chosen], num_groups)
    return medians


def _offsets(operations: Operations, time: Matrix, of: Integers, num_ranks: int) -> Matrix:
    """By how many seconds the clock of each rank is ahead, by a sample of the ends [ranks]."""
    # A few of each family do: a clock is ahead in all.
    sampled = np.zeros(int(of.max()) + 1, dtype=bool)
    family_of = np.zeros(len(sampled), dtype=np.int64)
    family_of[of[of >= 0]] = operations.family[of >= 0]
    for family in np.unique(family_of):
        members = np.flatnonzero(family_of == family)
        sampled[members[:: max(1, len(members) // _MAX_SAMPLES)]] = True
    is_sample = (of >= 0) & sampled[of]
    row, time = operations.row[is_sample], time[is_sample]
    _, key = np.unique(of[is_sample], return_inverse=True)
    offsets = np.zeros(num_ranks)
    for _ in range(_MAX_ROUNDS):
        ahead = time - offsets[row]
        ahead -= _medians(ahead, key, int(key.max()) + 1)[key]
        change = np.nan_to_num(_medians(ahead, row, num_ranks))
        offsets += change
        if np.abs(change).max() < _CONVERGED_SECONDS:
            break
    return offsets


def _bounds(operations: Operations, keys: _Keys, *, is_traced: bool) -> tuple[Matrix, float]:
    """Begin of each step by the common clock, ascending, and the end of the last: seconds [steps].

    Raises TooFewError.
    """
    counts = np.bincount(operations.row[operations.is_collective])
    reference = int(np.argmax(counts))
    communicators = {
        operations.families[family][0]
        for family in np.unique(operations.family[operations.row == reference])
    }
    is_own = np.array([communicator in communicators for communicator, _ in operations.families])
    own = np.flatnonzero(is_own[keys.family])
    own = own[np.argsort(keys.time[own], kind="stable")][:_MAX_PERIOD_COLLECTIVES]
    begins = keys.time[own] - keys.shortest[own]
    gaps = begins - np.append(begins[0], keys.time[own][:-1])
    families = keys.family[own].tolist()
    sequence = [
        Collective(operations.families[family][0], operations.families[family][1], size)
        for family, size in zip(families, keys.size_bytes[own].tolist(), strict=True)
    ]
    period = find_period(sequence, gaps.tolist() if is_traced else None)
    if period is None:
        raise TooFewError(
            f"{plural(len(own), 'collective')} of a rank show no period: at least four steps are "
            "needed, recorded without gaps."
        )
    starts = np.array(period.starts)
    # Without gaps any collective may begin a period: what precedes the first is a step but for it.
    if not is_traced and _MIN_LEAD_RATIO * period.length <= starts[0] < period.length:
        starts = np.append(0, starts)
    bounds = keys.time[own[starts]]
    if is_traced:
        bounds = np.minimum(bounds - keys.shortest[own[starts]], bounds)
    # Whether the last step is whole shows by its length only.
    num_last = len(own) - starts[-1]
    usual = float(np.median(np.diff(bounds)))
    if num_last < period.length:
        return bounds[:-1], float(bounds[-1])
    return bounds, max(float(bounds[-1]) + usual, float(keys.time[own[-1]]))
