"""An event's place among all events of its job, and what a store keeps of it beside its columns."""

import json
from collections.abc import Mapping
from typing import Any

from lockstep_ledger.merge.precedence import rank_of
from lockstep_records.events.event import Event

Order = tuple[float, int, int, str]
"""Time, attempt, rank of the kind, and id: by it events are placed, whatever order they come in."""
_encode = json.JSONEncoder(separators=(",", ":")).encode


def order_of(event: Event) -> Order:
    """Its place among all events."""
    return event.time, event.attempt, rank_of(event.kind), event.id


def body_of(event: Event) -> str:
    """What the columns of the store do not hold, as JSON."""
    launcher = {} if event.launcher is None else {"launcher": event.launcher}
    return _encode({"fields": event.fields, **launcher, **event.extra})


def machine_of(source: str, body: Mapping[str, Any]) -> str:
    """The node of a stored event, without the launcher that its body names."""
    launcher = body.get("launcher")
    return source.removesuffix(f"/{launcher}") if launcher else source
