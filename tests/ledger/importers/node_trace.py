"""A trace of nodes that come and go, as spot instances do: each node is a job that is preempted.

A line is ``MILLISECONDS,add|remove,NODE``. GPU-seconds of the ledger are then the node-hours of the
trace times the GPUs of a node::

    python -m tests.ledger.importers.node_trace TRACE > events.jsonl
    lockstep ledger import events.jsonl
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from lockstep_ledger.importers.scheduler_events import JobEvents
from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import Evidence
from lockstep_records.events.event import Event

_NUM_COLUMNS = 3


def read_node_trace(
    lines: Iterable[str], *, start_seconds: float, gpus_per_node: int = 1
) -> Iterator[Event]:
    """Events of all nodes, in the order of the trace; what stays is cancelled with its last line.

    Args:
        lines: of the trace.
        start_seconds: when it began, seconds since 1970.
        gpus_per_node: of each.

    Raises:
        ValueError: a line is none of a trace, a node comes twice, or leaves without having come.
    """
    present: dict[str, int] = {}
    visits: dict[str, int] = {}
    last = 0.0
    for number, line in enumerate(filter(str.strip, lines), 1):
        last, change, node = _parse(line, number)
        events = JobEvents(source="nodes", job_id=node, node=node)
        time = start_seconds + last
        _check_order(number, node, is_arrival=change == "add", is_present=node in present)
        if change == "add":
            visit = visits[node] = visits.get(node, -1) + 1
            present[node] = visit
            shape = {"num_nodes": 1, "num_gpus": gpus_per_node, "source": "nodes"}
            yield events.event("job_started", time, visit, shape, visit)
        else:
            yield from _left(events, time, present.pop(node))
    judged = classify(Evidence(scheduler=("CANCELLED",))).event_fields()
    for node, visit in sorted(present.items()):
        job = JobEvents(source="nodes", job_id=node, node=node)
        yield job.event("job_finished", start_seconds + last, visit, judged, visit)


def _check_order(number: int, node: str, *, is_arrival: bool, is_present: bool) -> None:
    if is_arrival == is_present:
        state = "is there already" if is_arrival else "is not there"
        raise ValueError(f"line {number}: {node} {state}; give the whole trace in order")


def _left(events: JobEvents, time: float, visit: int) -> Iterator[Event]:
    yield events.event("job_preempted", time, visit, {"reason": "the node left"}, visit)
    judged = classify(Evidence(scheduler=("PREEMPTED",))).event_fields()
    yield events.event("job_finished", time, visit, judged, visit)


def _parse(line: str, number: int) -> tuple[float, str, str]:
    """Seconds since the begin, change and node of a line."""
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != _NUM_COLUMNS or not parts[0].isdigit() or parts[1] not in {"add", "remove"}:
        raise ValueError(
            f"line {number}: {line.strip()[:60]!r} is not MILLISECONDS,add|remove,NODE"
        )
    return int(parts[0]) / 1000, parts[1], parts[2]


if __name__ == "__main__":
    trace = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    for each in read_node_trace(trace, start_seconds=946_684_800.0):
        sys.stdout.write(json.dumps(each.document()) + "\n")
