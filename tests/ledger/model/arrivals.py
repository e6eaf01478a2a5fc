"""Events as they arrive at a ledger, and the facts that they state once clocks are corrected."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

CLOCK_SLACK_SECONDS = 2.0
"""A sender whose clock differs by more is corrected."""
_FIRST_KINDS = ("job_submitted", "resources_allocated", "job_started", "attempt_started")
_LAST_KINDS = (
    "attempt_ended", "job_preempted", "resources_released", "job_finished", "job_requeued",
    "ledger_settled",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """An event in the hands of the ledger, with the wall clocks of its receiver and its sender."""

    event: Mapping[str, Any]
    received: float
    sent: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """What an event states, at the true time; ``order`` is how many the ledger had heard before."""

    id: str
    kind: str
    job_id: str
    attempt: int
    time: float
    node: str
    cluster: str
    owner: int | None
    fields: Mapping[str, Any] = field(default_factory=dict)
    received: float = 0.0
    order: int = 0

    @property
    def key(self) -> tuple[float, int, int, str]:
        """Orders events everywhere."""
        return (self.time, self.attempt, kind_rank(self.kind), self.id)

    def text(self, name: str) -> str | None:
        value = self.fields.get(name)
        return value if isinstance(value, str) else None

    def number(self, name: str) -> float | None:
        value = self.fields.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number and value is not None else None


def kind_rank(kind: str) -> int:
    """Position of a kind among events of one time and attempt: starts, all others, ends."""
    if kind in _FIRST_KINDS:
        return _FIRST_KINDS.index(kind)
    if kind in _LAST_KINDS:
        return len(_FIRST_KINDS) + 1 + _LAST_KINDS.index(kind)
    return len(_FIRST_KINDS)


def facts_of(arrivals: Iterable[Arrival]) -> list[Fact]:
    """Every event once, at its corrected time, in the order of the sort key."""
    first: dict[str, Arrival] = {}
    for arrival in sorted(arrivals, key=lambda each: each.received):
        first.setdefault(arrival.event["id"], arrival)
    return sorted(map(_fact, first.values(), range(len(first))), key=lambda fact: fact.key)


def _fact(arrival: Arrival, order: int) -> Fact:
    event = arrival.event
    offset = 0.0 if arrival.sent is None else arrival.received - arrival.sent
    return Fact(
        id=event["id"],
        kind=event["kind"],
        job_id=event["job_id"],
        attempt=event["attempt"],
        time=event["time"] + (offset if abs(offset) > CLOCK_SLACK_SECONDS else 0.0),
        node="/".join(filter(None, (event.get("node"), event.get("launcher")))),
        cluster=event.get("cluster") or "",
        owner=event.get("owner"),
        fields=event["fields"],
        received=arrival.received,
        order=order,
    )
