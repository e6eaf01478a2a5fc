"""Marks count once for a job however many nodes report them: checkpoints, resumes, failures."""

from collections.abc import Mapping

from lockstep_ledger.merge.spans import WindowRow
from lockstep_records.events.event import Event

Mark = tuple[str, int, int]
"""What it is, its attempt, and its step or total."""
_FAILURES = {
    "failed": "checkpoint_success",
    "invalid": "checkpoint_success",
    "restore_failed": "resume_success",
}


def mark_of(event: Event) -> Mark | None:
    """What an event reports; None where it counts nothing."""
    number = event.count("step" if event.kind in _STEP_KINDS else "total")
    if event.kind == "checkpoint_durable":
        return "checkpoint", event.attempt, -1 if number is None else number
    if event.kind == "job_resumed" and number:
        return "resumed", event.attempt, int(event.fields.get("fallback") is True)
    if event.kind == "checkpoint_failed" and number:
        return event.text("outcome") or "failed", event.attempt, number
    if event.kind == "restore_failed" and number:
        return "restore_failed", event.attempt, number
    return None


def group_of(counted: Mark) -> Mark:
    """Marks of one group count together; each checkpoint counts by itself."""
    return counted if counted[0] == "checkpoint" else (*counted[:2], 0)


def tally(group: Mark, times: Mapping[int, float]) -> tuple[dict[str, int], list[WindowRow]]:
    """What a group of marks counts, and when.

    Args:
        group: of the marks.
        times: earliest report by number.
    """
    if not times:
        return {}, []
    what, first = group[0], min(times.values())
    if what == "checkpoint":
        return {"ok": 1}, [WindowRow(first, "checkpoint_success", 1.0, 1.0)]
    if what == "resumed":
        is_fallback = 1 in times
        name = "fallback" if is_fallback else "resumed"
        return {name: 1}, [WindowRow(first, "resume_success", float(not is_fallback), 1.0)]
    rows, highest = [], 0
    for number, time in sorted(times.items(), key=lambda entry: (entry[1], entry[0])):
        if number > highest:
            rows.append(WindowRow(time, _FAILURES[what], 0.0, float(number - highest)))
            highest = number
    return {what: highest}, rows


_STEP_KINDS = frozenset({"checkpoint_durable", "job_resumed"})
