"""Launchers of many jobs in one small process that writes their events and may be killed anywhere.

It continues from what its files hold: a job that had not begun to end starts again as the next
attempt, one that had writes the rest of its end.
"""

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep_records.events.event import Event, append_event, read_events
from lockstep_records.files.jobs import job_folder

STEPS = 8
_OUTCOMES: tuple[tuple[str, dict[str, str]], ...] = (
    *[("succeeded", {})] * 14,
    ("failed", {"failure_class": "infra", "cause": "xid"}),
    ("failed", {"failure_class": "infra", "cause": "nic_down"}),
    ("failed", {"failure_class": "user", "cause": "exception"}),
    ("time_limit", {"failure_class": "user"}),
    ("cancelled", {}),
    ("not_converged", {}),
)


def planned_end(job_id: str) -> tuple[str, dict[str, str]]:
    """What becomes of a job in the end."""
    return random.Random(job_id).choice(_OUTCOMES)


def nodes_of(number: int, roots: list[Path]) -> list[Path]:
    """Every fifth job is on both nodes."""
    return roots if number % 5 == 0 else [roots[number % 2]]


class SoakJob:
    """One job; ``advance`` writes its next event."""

    def __init__(self, number: int, roots: list[Path]) -> None:
        self.job_id = f"job-{number:04d}"
        self._nodes = nodes_of(number, roots)
        self._plan = self._continue()

    def advance(self) -> bool:
        """Writes the next event; False when there is none."""
        return next(self._plan, False)

    def _write(self, root: Path, kind: str, attempt: int, **fields: Any) -> bool:
        event = Event(kind=kind, job_id=self.job_id, attempt=attempt, fields=fields, node=root.name)
        begin_seconds = time.perf_counter()
        append_event(job_folder(root, self.job_id), event)
        # Beside the jobs: how long a launcher waited for the writing of an event.
        with (root / "append-seconds").open("a", encoding="utf-8") as file:
            file.write(f"{time.time():.3f} {time.perf_counter() - begin_seconds:.6f}\n")
        return True

    def _continue(self) -> Iterator[bool]:
        before = {root: read_events(job_folder(root, self.job_id)) for root in self._nodes}
        written = [event for events in before.values() for event in events]
        attempt = max((event.attempt for event in written), default=-1)
        kinds = {(e.node, e.kind) for e in written if e.attempt == attempt}
        is_ending = any(kind == "attempt_ended" for _, kind in kinds)
        if not is_ending:
            attempt += 1
            kinds = set()
            yield from self._start(attempt)
            steps = [e.fields["step"] for e in written if e.kind == "checkpoint_durable"]
            yield from self._train(attempt, max(steps, default=0))
        yield from self._end(attempt, kinds)

    def _start(self, attempt: int) -> Iterator[bool]:
        described = {"num_nodes": len(self._nodes), "num_gpus": 8 * len(self._nodes)}
        for root in self._nodes:
            yield self._write(root, "job_started", attempt, project="soak", **described)
        for root in self._nodes:
            yield self._write(root, "attempt_started", attempt, num_gpus=8)

    def _train(self, attempt: int, first: int) -> Iterator[bool]:
        if first:
            yield self._write(self._nodes[0], "job_resumed", attempt, step=first)
        for step in range(first + 1, STEPS + 1):
            yield self._write(self._nodes[-1], "checkpoint_durable", attempt, step=step)

    def _end(self, attempt: int, kinds: set[tuple[str | None, str]]) -> Iterator[bool]:
        outcome, fields = planned_end(self.job_id)
        for kind in ("attempt_ended", "job_finished"):
            for root in self._nodes:
                if (root.name, kind) not in kinds:
                    yield self._write(root, kind, attempt, outcome=outcome, **fields)


def main() -> None:
    """Advances the jobs of a range in turn, at a rate of events a second."""
    first, last, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    roots = [Path(argument) for argument in sys.argv[4:]]
    jobs = [SoakJob(number, roots) for number in range(first, last)]
    dice = random.Random()
    due = time.monotonic()
    while jobs:
        job = dice.choice(jobs)
        if not job.advance():
            jobs.remove(job)
            continue
        due += 1 / rate
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
