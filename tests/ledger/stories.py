"""Events of made-up jobs, as the launchers of nodes and schedulers write them."""

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from lockstep_ledger.ingest.document import read_delivery
from lockstep_records.events.event import Event

BEGIN = 1_795_000_000.0
_ids = itertools.count()
Document = dict[str, Any]


@dataclass
class Story:
    """Collects the events of one job in the order of writing; ``now`` moves with them."""

    job_id: str = "job-1"
    cluster: str = "east"
    now: float = BEGIN
    events: list[Document] = field(default_factory=list)

    def add(
        self, kind: str, node: str | None = "n1", attempt: int = 0, launcher: str | None = None,
        **fields: Any,
    ) -> "Story":  # fmt: skip
        document = {
            "id": f"{self.job_id}-{next(_ids)}",
            "kind": kind,
            "job_id": self.job_id,
            "attempt": attempt,
            "time": self.now,
            "fields": fields,
            "cluster": self.cluster,
        }
        names = {"node": node, "launcher": launcher}
        stated = {name: value for name, value in names.items() if value is not None}
        self.events.append({**document, **stated})
        return self

    def after(self, seconds: float) -> "Story":
        self.now += seconds
        return self

    def start(self, node: str = "n1", attempt: int = 0, **fields: Any) -> "Story":
        self.add("job_started", node, attempt, **fields)
        return self.add("attempt_started", node, attempt)

    def end(
        self, outcome: str = "succeeded", node: str = "n1", attempt: int = 0, **fields: Any
    ) -> "Story":
        self.add("attempt_ended", node, attempt, outcome=outcome, **fields)
        return self.add("job_finished", node, attempt, outcome=outcome, **fields)


def delivery(events: list[Document], node: str = "", version: int = 1) -> bytes:
    message = {"version": version, "cluster": "east", "node": node, "events": events}
    return json.dumps(message).encode()


def checked(story: Story, received_seconds: float | None = None) -> list[Event]:
    now = story.now if received_seconds is None else received_seconds
    read = read_delivery(delivery(story.events), now)
    assert read.refused == ()
    return list(read.events)
