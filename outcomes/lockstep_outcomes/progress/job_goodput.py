"""Goodput of a whole job over all its attempts on one axis of time, by its events."""

from collections.abc import Iterable
from dataclasses import dataclass

from lockstep_catalogue.vocabulary import GOODPUT_STATES, GoodputState
from lockstep_outcomes.progress.ettr import JobGoodput
from lockstep_records.events.event import Event

_STATES: dict[str, GoodputState] = {state: state for state in GOODPUT_STATES}


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeJob:
    """Where the allocated time of a job went.

    Attributes:
        goodput: allocated GPU seconds by state; of ranks, where a job has no GPUs.
        elapsed_seconds: from the first launch to the end of the last attempt, or until the last
            word of it.
    """

    goodput: JobGoodput
    num_attempts: int
    elapsed_seconds: float


@dataclass(kw_only=True, slots=True)
class _Attempt:
    begin: float | None = None
    end: float | None = None
    states: dict[str, dict[str, float]] | None = None
    num_ranks: dict[str, int] | None = None


def whole_job(events: Iterable[Event]) -> WholeJob | None:
    """The goodput of a job; None where no launcher reported any.

    Each attempt's launcher reports the seconds of its ranks by state, from the launch on. Between
    the end of an attempt and the begin of the next the allocation recovers. Between two launches
    it is not the job's, so that nothing counts.
    """
    attempts: dict[int, _Attempt] = {}
    launches: set[int] = set()
    launched = False
    for event in sorted(events, key=lambda each: each.time):
        if event.kind == "job_started":
            launched = True
            continue
        attempt = attempts.setdefault(event.attempt, _Attempt())
        if event.kind == "attempt_started":
            attempt.begin = event.time if attempt.begin is None else attempt.begin
            if launched:
                launches.add(event.attempt)
            launched = False
        elif event.kind == "attempt_ended":
            attempt.end = event.time
        elif event.kind == "goodput":
            _note(attempt, event)
    return _joined(attempts, launches)


def _note(attempt: _Attempt, event: Event) -> None:
    """Takes the newest word of a node about an attempt."""
    seconds, num_ranks = event.fields.get("rank_seconds"), event.fields.get("num_ranks")
    if not isinstance(seconds, dict) or not isinstance(num_ranks, int):
        return
    node = event.node or ""
    attempt.states = (attempt.states or {}) | {node: seconds}
    attempt.num_ranks = (attempt.num_ranks or {}) | {node: num_ranks}
    attempt.end = attempt.end or event.time


def _joined(attempts: dict[int, _Attempt], launches: set[int]) -> WholeJob | None:
    totals: dict[GoodputState, float] = {}
    elapsed = 0.0
    counted = [number for number in sorted(attempts) if attempts[number].states]
    for number in counted:
        attempt = attempts[number]
        for states in (attempt.states or {}).values():
            for name, seconds in states.items():
                state = _STATES.get(name, "unknown")
                totals[state] = totals.get(state, 0.0) + float(seconds)
        gpus = sum((attempt.num_ranks or {}).values())
        total = sum(sum(map(float, states.values())) for states in (attempt.states or {}).values())
        elapsed += total / gpus if gpus else 0.0
        before = attempts.get(number - 1)
        if before is None or number in launches or before.end is None or attempt.begin is None:
            continue
        recovery = max(0.0, attempt.begin - before.end)
        totals["recovery"] = totals.get("recovery", 0.0) + recovery * gpus
        elapsed += recovery
    if not counted:
        return None
    return WholeJob(
        goodput=JobGoodput(gpu_seconds=totals), num_attempts=len(counted), elapsed_seconds=elapsed
    )
