"""Pages that NCCL's plugin wrote: waits out of arrivals, and whether ``attach`` says the same.

Where nothing told the end of a collective, a rank alone does not know how long it waited. All ranks
together do: nobody leaves a collective before the last rank has come, so what a rank then took
longer to its next one than the quickest of those that left with it is its own.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep_records.nccl.launches import FUNCTIONS, PAIRWISE, read_launches
from lockstep_records.page.layout import PLUGIN_PAGE
from lockstep_records.page.reader import Page, PageError, read_page
from lockstep_reports.arrays import Matrix

JOINED = (
    "No end of a collective was seen, so waits follow from the arrivals of the hosts: a device that"
    " is slow behind a host that is not does not show."
)
_CLOCK_SECONDS = 1e-6  # times of a page and of its launches differ by rounding
_SEND = FUNCTIONS.index("Send")
_PAIRWISE = [FUNCTIONS.index(name) for name in PAIRWISE]
_MAX_DIFFERENCE_RATIO = 0.05
_Integers = NDArray[np.int64]


def join_arrivals(pages: Sequence[Page], matrices: dict[str, Matrix]) -> bool:
    """Fills in the waits where no rank knows its own, in place; whether that was so.

    Args:
        pages: all of them, by rank.
        matrices: fields of the rows by name [ranks, steps]; times are of the wall clock.
    """
    knows_waits = np.nansum(matrices["sync"]) > 0 or np.nansum(matrices["device"]) > 0
    if knows_waits or not all(page.is_of_plugin for page in pages):
        return False
    starts, ends = matrices["start"], matrices["last_arrival"]
    is_complete = ~np.isnan(starts + ends).any(axis=0)
    starts, ends = starts[:, is_complete], ends[:, is_complete]
    if not ends.size:
        return False
    own = _own_excess(pages, ends)
    seconds = np.maximum(ends.max(axis=0) - starts.max(axis=0), 0.0)
    waits = np.minimum(own.max(axis=0) - own, seconds)
    joined = {
        "seconds": np.broadcast_to(seconds, waits.shape),
        "sync": waits,
        "other": seconds - waits,
        "start": np.broadcast_to(starts.max(axis=0), waits.shape),
        "last_arrival": ends.max(axis=0) - waits,
    }
    for name, values in joined.items():
        matrices[name] = matrices[name].copy()  # one that is the same everywhere is read-only
        matrices[name][:, is_complete] = values
    return True


def _wall_seconds(page: Page, monotonic_ns: _Integers) -> Matrix:
    created_ns = page.identity["start_monotonic_ns"]
    since: Matrix = (monotonic_ns - created_ns) / 1e9
    return page.wall_seconds(created_ns) + since


class _Events(NamedTuple):
    """Collectives of all ranks, each rank's in the order of arrival [events].

    ``operation`` is the same on all that took part in one.
    """

    rank: _Integers
    arrival: Matrix
    operation: _Integers
    is_pairwise: NDArray[np.bool_]


def _own_excess(pages: Sequence[Page], ends: Matrix) -> Matrix:
    """By how much a rank worked longer than the quickest that left with it: [ranks, steps] seconds.

    Of steps before the first collective that all ranks still have, what the steps' last arrivals
    say.
    """
    excess: Matrix = ends - ends.min(axis=0)
    events = _read_events(pages)
    if events is None:
        return excess
    begin = max(events.arrival[events.rank == row].min() for row in range(len(pages)))
    covered = ends.min(axis=0) > begin
    if not covered.any():
        return excess
    first = int(np.argmax(covered)) + 1  # of the first of these steps a part may be missing
    excess[:, first:] = 0.0
    rank, arrival, own = _work_beyond(events)
    for row in range(len(pages)):
        of_rank = rank == row
        columns = np.searchsorted(ends[row], arrival[of_rank] - _CLOCK_SECONDS)
        is_inside = (columns >= first) & (columns < ends.shape[1])
        np.add.at(excess[row], columns[is_inside], own[of_rank][is_inside])
    return excess


def _read_events(pages: Sequence[Page]) -> _Events | None:
    tables, arrivals = [], []
    for row, page in enumerate(pages):
        try:
            launches = read_launches(page.path).collectives
        except (OSError, PageError):
            return None
        if not launches:
            return None
        tables.append(np.array([(row, *_columns(each)) for each in launches], dtype=np.int64))
        times = np.array([each["arrival_ns"] for each in launches], dtype=np.int64)
        arrivals.append(_wall_seconds(page, times))
    table = np.concatenate(tables)
    _, operation = np.unique(table[:, 1:6], axis=0, return_inverse=True)
    return _Events(table[:, 0], np.concatenate(arrivals), operation.reshape(-1), table[:, 6] == 1)


def _columns(launch: dict[str, int]) -> tuple[int, ...]:
    """What names the operation (five), and whether it is pairwise."""
    function, rank, peer = launch["function"], launch["rank"], launch["peer"]
    communicator, is_pairwise = launch["communicator"] & (1 << 62) - 1, function in _PAIRWISE
    if is_pairwise:
        pair = (rank, peer) if function == _SEND else (peer, rank)
        return communicator, _SEND, *pair, launch["sequence"], 1
    return communicator, function, -1, -1, launch["sequence"], 0


def _work_beyond(events: _Events) -> tuple[_Integers, Matrix, Matrix]:
    """Rank, arrival and own work beyond the quickest, up to each collective [collectives]."""
    rank, arrival = events.rank, events.arrival
    last = np.full(events.operation.max() + 1, -np.inf)
    np.maximum.at(last, events.operation, arrival)
    is_followed = np.append(rank[1:] == rank[:-1], False)
    following = np.where(is_followed, np.append(arrival[1:], 0.0), arrival)
    waits = np.clip(np.minimum(last[events.operation], following) - arrival, 0.0, None)
    pair_waits = np.concatenate([[0.0], np.cumsum(np.where(events.is_pairwise, waits, 0.0))])
    at = np.flatnonzero(~events.is_pairwise)
    at, to = at[:-1], at[1:]
    same = rank[at] == rank[to]
    at, to = at[same], to[same]
    released = last[events.operation[at]]
    # A host that runs ahead arrives at the next before the last one has come to this.
    begin = np.where(arrival[to] >= released, released, arrival[at])
    own = arrival[to] - begin - (pair_waits[to] - pair_waits[at])
    quickest = np.full(len(last), np.inf)
    np.minimum.at(quickest, events.operation[at], own)
    return rank[to], arrival[to], own - quickest[events.operation[at]]


def join_plugin(pages: Sequence[Page], matrices: dict[str, Matrix]) -> Iterator[str]:
    """Fills in what the plugin's pages lack, in place.

    Gives sentences on what they do not know, or on where ``attach`` differs from them.
    """
    if join_arrivals(pages, matrices):
        yield JOINED
    if pages and all(page.is_of_plugin for page in pages):
        yield (
            "NCCL's plugin alone tells of this job: a step is a period of its collectives, and"
            " phases are unknown."
        )
    for page in pages:
        other = page.path.with_name(f"{page.path.name.removesuffix('.page')}{PLUGIN_PAGE}")
        if page.is_of_plugin or not other.exists():
            continue
        try:
            yield from _differences(page, read_page(other))
        except PageError:
            continue
        return  # ranks that do the same differ alike


def _differences(page: Page, other: Page) -> Iterator[str]:
    own, seen = (_mean_seconds(each) for each in (page, other))
    if own and seen and abs(own - seen) > _MAX_DIFFERENCE_RATIO * own:
        yield (
            f"Rank {page.identity['rank']} and NCCL's plugin do not mean the same by a step: "
            f"{own:.3g} s by attach, {seen:.3g} s by the period of the collectives; attach counts."
        )


def _mean_seconds(page: Page) -> float | None:
    steps = page.state["settled_steps"]
    return page.state["step_seconds_sum"] / steps if steps else None
