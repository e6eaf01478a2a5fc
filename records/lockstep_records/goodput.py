"""What the wall clock of a rank went into: exclusive states that sum to it to the nanosecond.

Waiting for others is told as such and a step done twice as rework; what no mark explains is told as
unknown and not folded into anything else.
"""

from collections.abc import Mapping

from lockstep_catalogue.labels import GOODPUT, STEP_PHASES
from lockstep_records.page.reader import Page

# A phase that stands here is a state or a part of one; the others count as unknown.
_STATE_OF = {
    "init": "init",
    "data": "data_wait",
    "forward": "productive",
    "backward": "productive",
    "optimizer": "productive",
    "sync": "comm_wait",
    "checkpoint": "checkpoint",
    "eval": "eval",
    "restore": "restore",
}
_PLANNED = frozenset({"checkpoint", "eval"})  # time in them is no lost work, whatever the step is
REWORK_PHASES = tuple(phase for phase in STEP_PHASES if phase not in _PLANNED)
HANG_SECONDS = 120.0
HANG_STEPS = 20.0


def hang_after_seconds(num_steps: int, step_seconds_sum: float) -> float:
    """How long a rank may go without a mark: 20 steps of mean length, and no less than 120 s."""
    mean_seconds = step_seconds_sum / num_steps if num_steps else 0.0
    return max(HANG_SECONDS, HANG_STEPS * mean_seconds)


def closed_ns(page: Page) -> int:
    """Monotonic time up to which the page's totals reach: its start and all that was counted."""
    counted = sum(_ns(seconds) for seconds in page.state["phase_seconds"].values())
    return int(page.identity["start_monotonic_ns"]) + counted


def goodput_ns(page: Page, until_ns: int | None = None) -> Mapping[str, int]:
    """Nanoseconds of a rank by state of the label ``goodput``; all states, in their order.

    Args:
        page: of one rank and attempt.
        until_ns: monotonic time at which the rank's clock stops: now, or its end; the last mark
            when it is earlier than that. Left out, the states reach as far as the page's totals,
            and never fall from one reading to the next.

    Returns:
        States that sum to the time from the start of the process to ``until_ns`` exactly. The time
        since the last mark counts as a hang once it is longer than ``hang_after_seconds``.
    """
    spent = dict.fromkeys(GOODPUT.values, 0)
    spent["init"] = _ns(page.periodic["process_seconds"] or 0.0)
    for phase, seconds in page.state["phase_seconds"].items():
        spent[_STATE_OF.get(phase, "unknown")] += _ns(seconds)
    for lost, phases in (("hang", STEP_PHASES), ("rework", REWORK_PHASES)):
        told = page.periodic[f"{lost}_seconds"]
        for phase in (one for one in phases if told[one]):
            state = _STATE_OF.get(phase, "unknown")
            moved = min(spent[state], _ns(told[phase]))
            spent[state] -= moved
            spent[lost] += moved
    if until_ns is not None:
        _add_open(spent, page, until_ns)
    return spent


def _add_open(spent: dict[str, int], page: Page, until_ns: int) -> None:
    """Adds what the totals do not reach: up to the last mark, and from there on."""
    marked_ns = max(closed_ns(page), page.progress_ns)
    spent["unknown"] += marked_ns - closed_ns(page)
    since_ns = max(0, until_ns - marked_ns)
    limit = hang_after_seconds(page.state["steps"], page.state["step_seconds_sum"])
    hangs = page.phase in STEP_PHASES and since_ns > _ns(limit)
    spent["hang" if hangs else _STATE_OF.get(page.phase, "unknown")] += since_ns


def _ns(seconds: float) -> int:
    """Whole nanoseconds; what can be no duration counts as none, for a page may be hostile."""
    return round(seconds * 1e9) if 0 <= seconds < _CENTURY_SECONDS else 0


_CENTURY_SECONDS = 3.2e9
