"""Pages that NCCL's plugin wrote: waits out of arrivals, and whether ``attach`` says the same.

Where nothing told the end of a collective, a rank alone does not know how long it waited. Ranks of
one node have one clock: who came before the last one waited for it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.page.layout import PLUGIN_PAGE, ROW_FLAGS
from lockstep_records.page.reader import Page, PageError, read_page

JOINED = (
    "No end of a collective was seen, so a rank's wait is the time from its own arrival to that of"
    " the last rank of its node."
)
_ARRIVALS = ("first_arrival_ns", "last_arrival_ns")
_SYNC, _OTHER = STEP_PHASES.index("sync"), STEP_PHASES.index("other")
_DEVICE = 1 << ROW_FLAGS.index("device")
_MAX_DIFFERENCE_RATIO = 0.05
_Ranks = Sequence[tuple[Page, NDArray[np.void]]]


def is_of_plugin(page: Page) -> bool:
    """Whether NCCL's plugin wrote a page."""
    return page.path.name.endswith(PLUGIN_PAGE)


def join_arrivals(ranks: _Ranks) -> bool:
    """Fills in the waits of rows without any, in place; whether there were such ranks."""
    by_node: dict[str, list[NDArray[np.void]]] = defaultdict(list)
    for page, rows in ranks:
        if not is_of_plugin(page) or _knows_waits(rows):
            return False
        by_node[page.identity["node"]].append(rows)
    for of_node in by_node.values():
        _join(of_node)
    return bool(ranks)


def _knows_waits(rows: NDArray[np.void]) -> bool:
    return bool((rows["flags"] & _DEVICE).any() or rows["phase_seconds"][:, _SYNC].any())


def _join(of_node: list[NDArray[np.void]]) -> None:
    numbers = of_node[0]["step"]
    for rows in of_node[1:]:
        numbers = np.intersect1d(numbers, rows["step"])
    chosen = [np.searchsorted(rows["step"], numbers) for rows in of_node]

    def matrix(name: str) -> NDArray[np.int64]:
        return np.array([rows[name][at] for rows, at in zip(of_node, chosen, strict=True)])

    arrivals = [matrix(name) for name in _ARRIVALS]
    lag_ns = np.max([each - each.min(axis=0) for each in arrivals], axis=0)
    waited = (lag_ns.max(axis=0) - lag_ns) / 1e9
    begin_ns, end_ns = matrix("start_ns").max(axis=0), arrivals[-1].max(axis=0)
    seconds = np.maximum((end_ns - begin_ns) / 1e9, 0.0)
    for rows, at, waits in zip(of_node, chosen, np.minimum(waited, seconds), strict=True):
        rows["seconds"][at], rows["start_ns"][at] = seconds, begin_ns
        rows["last_arrival_ns"][at] = end_ns - (waits * 1e9).astype(np.int64)
        rows["phase_seconds"][at, _SYNC] = waits
        rows["phase_seconds"][at, _OTHER] = seconds - waits


def plugin_notes(pages: Sequence[Page]) -> Iterator[str]:
    """Sentences on what the plugin does not know, or on where ``attach`` differs from it."""
    if pages and all(map(is_of_plugin, pages)):
        yield (
            "NCCL's plugin alone tells of this job: a step is a period of its collectives, and"
            " phases are unknown."
        )
    for page in pages:
        other = page.path.with_name(f"{page.path.name.removesuffix('.page')}{PLUGIN_PAGE}")
        if is_of_plugin(page) or not other.exists():
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
