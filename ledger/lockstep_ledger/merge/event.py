"""An event as the ledger keeps it, and the checked reading of its fields."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep_ledger.merge.precedence import rank_of

Order = tuple[float, int, int, str]
"""Time, attempt, rank of the kind, and id: by it events are placed, whatever order they come in."""
_MAX_TEXT = 200
_MAX_NUMBER = 1e15
_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerEvent:
    """One event of a job, checked: texts are printable, the time is finite.

    Attributes:
        node: machine that wrote it, with ``/`` and its launcher where it is not the job's first
            there; empty for a scheduler's word on the job.
        owner: user id of the job's folder on that node; None of a scheduler and of an import.
        received_seconds: wall clock of the ledger at its arrival.
        extra: members of the document that this version has no name for, passed on unharmed.
    """

    id: str
    kind: str
    cluster: str
    job_id: str
    node: str
    attempt: int
    time_seconds: float
    received_seconds: float
    fields: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    owner: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Cluster and id of the job."""
        return self.cluster, self.job_id

    @property
    def order(self) -> Order:
        """Its place among all events."""
        return self.time_seconds, self.attempt, rank_of(self.kind), self.id

    def text(self, *names: str) -> str:
        """The first of these fields that is a printable text; empty without one."""
        for name in names:
            value = self.fields.get(name)
            if isinstance(value, str) and value and is_printable(value):
                return value
        return ""

    def number(self, *names: str) -> float | None:
        """The first of these fields that is a number of 0 or more; None without one."""
        for name in names:
            value: Any = self.fields.get(name)
            if _is_number(value) and 0 <= value < _MAX_NUMBER:
                return float(value)
        return None

    def count(self, *names: str) -> int | None:
        """As ``number``, whole."""
        value = self.number(*names)
        return None if value is None else int(value)

    def numbers(self, name: str) -> dict[str, float]:
        """A field that holds numbers by name; what is none in it is left out."""
        value = self.fields.get(name)
        if not isinstance(value, dict):
            return {}
        return {
            str(key): float(number)
            for key, number in value.items()
            if _is_number(number) and 0 <= number < _MAX_NUMBER
        }

    @property
    def body(self) -> str:
        """What the columns of the store do not hold, as JSON."""
        return _encode({"fields": self.fields, **self.extra})

    @property
    def letter(self) -> str:
        """All of it as JSON, so that it can be delivered again."""
        document = {
            "id": self.id,
            "kind": self.kind,
            "job_id": self.job_id,
            "attempt": self.attempt,
            "time": self.time_seconds,
            "fields": self.fields,
            **self.extra,
            "cluster": self.cluster,
            "node": machine_of(self.node, self.extra),
        }
        return _encode(document if self.owner is None else {**document, "owner": self.owner})


def machine_of(node: str, body: Mapping[str, Any]) -> str:
    """The node of an event, without the launcher that its other members name."""
    launcher = body.get("launcher")
    return node.removesuffix(f"/{launcher}") if launcher else node


def is_printable(text: str) -> bool:
    """Whether a text is short and without control characters, so that any database holds it."""
    return len(text) <= _MAX_TEXT and text.isprintable()


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the range of floats
        return False
