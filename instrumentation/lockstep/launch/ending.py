"""The end of a node's workers, and the attempt's outcome that follows by the table."""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.launch.description import is_at_time_limit
from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import evidence_of


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkersEnd:
    """How the workers of the last attempt ended.

    Attributes:
        exit_codes: one per worker; negative for a signal.
        stop_time: when it began to stop its workers, seconds since 1970.
    """

    attempt: int
    exit_codes: tuple[int, ...]
    signal_number: int | None = None
    stop_time: float | None = None


def judge_end(job: Path, end: WorkersEnd) -> dict[str, Any]:
    """Outcome, class, cause, reason and ranks of an attempt, as fields of its last events."""
    is_stopped = end.signal_number is not None
    evidence = evidence_of(
        job,
        end.attempt,
        launcher_signal=signal.Signals(end.signal_number).name if end.signal_number else None,
        at_time_limit=is_stopped and end.stop_time is not None and is_at_time_limit(end.stop_time),
        outside_time=end.stop_time if is_stopped else None,
    )
    return classify(evidence).event_fields()
