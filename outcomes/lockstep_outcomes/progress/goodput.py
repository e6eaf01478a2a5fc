"""Goodput of one rank: its wall clock in exclusive states that sum to it to the nanosecond.

Waiting for other ranks, steps done again and hangs are states of their own. Time that no phase
covers is ``unknown`` and is not added to any other state.
"""

from collections.abc import Mapping

from lockstep_catalogue import vocabulary
from lockstep_catalogue.labels import OWN_WORK_PHASES, STEP_PHASES
from lockstep_outcomes.progress import hangs
from lockstep_records.page.reader import Page

# Stragglers are known only by comparing ranks; recovery and idleness lie outside of any page.
_UNPAGED_STATES = frozenset({"straggler_wait", "recovery", "idle", "held_after_end"})
PAGE_STATES: tuple[vocabulary.GoodputState, ...] = tuple(
    state for state in vocabulary.GOODPUT_STATES if state not in _UNPAGED_STATES
)
"""The states that one rank's page can tell, in the order of the vocabulary."""

# A checkpoint or an evaluation is not lost work, also in a step that an earlier attempt completed.
# Waiting for a loader is a state of its own already, whoever waits.
HOST_BOUND_PHASES = tuple(phase for phase in OWN_WORK_PHASES if phase != "data")
"""Phases in which a device that waits for the host counts as ``host_bound``."""
REWORK_PHASES = tuple(phase for phase in STEP_PHASES if phase not in vocabulary.PAUSE_PHASES)
# A page may be hostile: a longer duration than a century is taken for none.
_MOST_SECONDS = 3.2e9


def totals_end_ns(page: Page) -> int:
    """Monotonic time up to which the page's totals reach: its start plus all phase seconds."""
    counted = sum(_nanoseconds(seconds) for seconds in page.state["phase_seconds"].values())
    return int(page.identity["start_monotonic_ns"]) + counted


def goodput_ns(page: Page, until_ns: int | None = None) -> Mapping[vocabulary.GoodputState, int]:
    """Nanoseconds of a rank by goodput state: all of ``PAGE_STATES``, in their order.

    Args:
        page: of one rank and attempt.
        until_ns: monotonic time at which the rank's clock stops: now, or its end; the time of the
            last heartbeat when that is later. Left out, the states reach as far as the page's
            totals, and never fall from one reading to the next.

    Returns:
        States that sum to the time from the start of the process to ``until_ns`` exactly. The time
        since the last heartbeat counts as a hang once it is longer than ``hang_limit_seconds``.
    """
    spent = dict.fromkeys(PAGE_STATES, 0)
    spent["startup"] = _nanoseconds(page.periodic["process_seconds"] or 0.0)
    for phase, seconds in page.state["phase_seconds"].items():
        spent[_state_of(phase)] += _nanoseconds(seconds)
    losses: tuple[tuple[vocabulary.GoodputState, tuple[str, ...]], ...]
    losses = (
        ("hang", STEP_PHASES),
        ("rework", REWORK_PHASES),
        ("host_bound", HOST_BOUND_PHASES),
    )
    for loss, phases in losses:
        lost_seconds = page.periodic[f"{loss}_seconds"]
        for phase in phases:
            state = _state_of(phase)
            # Never more than the state holds: the two totals are written at different moments.
            moved = min(spent[state], _nanoseconds(lost_seconds[phase]))
            spent[state] -= moved
            spent[loss] += moved
    if until_ns is not None:
        _add_open_time(spent, page, until_ns)
    return spent


def _add_open_time(spent: dict[vocabulary.GoodputState, int], page: Page, until_ns: int) -> None:
    """Adds what the totals do not reach: the time up to the last heartbeat, and after it."""
    totals_end = totals_end_ns(page)
    heartbeat_ns = max(totals_end, page.progress_ns)
    spent["unknown"] += heartbeat_ns - totals_end
    idle_ns = max(0, until_ns - heartbeat_ns)
    buckets = tuple(page.state["step_buckets"].values())
    timeouts = hangs.HangTimeouts().apply_page(page)
    limit = hangs.hang_limit_seconds(
        hangs.median_step_seconds(buckets, page.state["step_seconds_sum"]),
        # Off means that nobody is paged; the account of the time needs a limit all the same.
        timeouts.step_seconds or hangs.HANG_TIMEOUT_SECONDS,
        timeouts.pause_seconds or hangs.PAUSE_TIMEOUT_SECONDS,
        is_pause=page.phase in vocabulary.PAUSE_PHASES or not page.state["steps"],
    )
    is_hang = page.phase not in vocabulary.ENDED_PHASES and idle_ns / 1e9 > limit
    spent["hang" if is_hang else _state_of(page.phase)] += idle_ns


def _state_of(phase: str) -> vocabulary.GoodputState:
    return vocabulary.PHASE_STATES.get(phase, "unknown")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9) if 0 <= seconds < _MOST_SECONDS else 0
