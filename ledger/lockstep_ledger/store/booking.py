"""Books what a job adds: growth to the counters, and what would fall to the amendments."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from lockstep_ledger.merge.counted import Booked, Checkpoints, counts_of, observations_of, rows_of
from lockstep_ledger.merge.effects import Effects
from lockstep_ledger.merge.facts import JobFacts
from lockstep_ledger.merge.record import Record

_WATCHED = (
    "outcome", "failure_class", "cause", "cause_node", "project", "queue", "started", "ended",
    "attempts", "requeues", "preemptions", "resumes", "checkpoints", "gpu_seconds", "costs",
)  # fmt: skip
"""Fields of a finished job whose change is an amendment."""
_NOISE = 1e-6
Change = dict[str, Any]


def book(
    facts: JobFacts, before: Record | None, record: Record, checkpoints: Checkpoints,
    effects: Effects,
) -> list[Change]:  # fmt: skip
    """Adds what changed to the effects; field, before and after of each amendment."""
    old, group = facts.booked, record.group
    counts, old_counts = counts_of(record), dict(old.counts)
    effects.declare(group)
    fallen: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def fall(name: str, group: tuple[str, ...], was: float, now: float) -> None:
        effects.amend(name, group, was - now)
        fallen[name][0] += was
        fallen[name][1] += now

    is_moved = bool(old_counts) and old.group != group
    for key in old_counts.keys() | counts.keys():
        name, *labels = key
        was, now = old_counts.get(key, 0.0), counts.get(key, 0.0)
        if is_moved:
            fall(name, old.group, was, 0.0)
            effects.add(name, (*group, *labels), now)
        elif now > was + _NOISE:
            effects.add(name, (*group, *labels), now - was)
        elif was > now + _NOISE:
            fall(name, group, was, now)
        elif key in counts:
            counts[key] = was
    rows = rows_of(record, checkpoints)
    effects.count(old.group, old.rows, sign=-1)
    effects.count(group, rows)
    observed = _observe(old.observed, record, effects)
    facts.booked = Booked(group, list(counts.items()), rows, observed)
    changes = [{"field": name, "before": was, "after": now} for name, (was, now) in fallen.items()]
    return [*changes, *_amended_fields(before, record)]


def _observe(observed: list[str], record: Record, effects: Effects) -> list[str]:
    """Adds to the histograms that have no value of the job yet."""
    values = observations_of(record)
    new = {metric: value for metric, value in values.items() if metric.name not in observed}
    for metric, value in new.items():
        effects.observe(metric, record.group, value)
    return [*observed, *(metric.name for metric in new)]


def _amended_fields(before: Record | None, record: Record) -> Iterator[Change]:
    if before is None or before.status != "finished":
        return
    for name in ("status", *_WATCHED):
        was, now = getattr(before, name), getattr(record, name)
        if not _is_same(was, now):
            yield {"field": name, "before": was, "after": now}


def _is_same(was: Any, now: Any) -> bool:
    """Whether values are equal, but for the rounding of sums."""
    if isinstance(was, dict) and was.keys() == now.keys():
        return all(_is_same(was[name], now[name]) for name in was)
    if isinstance(was, float) and isinstance(now, float):
        return abs(was - now) <= _NOISE
    return bool(was == now)
