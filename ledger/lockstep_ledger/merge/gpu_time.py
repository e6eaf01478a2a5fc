"""GPU time of runs: what was granted beside what was used, and what was done with it by state."""

import math
from collections.abc import Mapping

from lockstep_catalogue.vocabulary import GoodputState
from lockstep_ledger.merge.allocation import (
    MICRO,
    Interval,
    gpu_seconds,
    share_models,
    step_intervals,
)
from lockstep_ledger.merge.facts import JobFacts
from lockstep_ledger.merge.runs import SLACK_SECONDS, Run
from lockstep_ledger.merge.spans import Span
from lockstep_outcomes.progress.ettr import JobGoodput

UNUSED = "idle"
"""What becomes of GPUs that a scheduler granted and no launcher used."""
HELD = "held_after_end"
States = dict[str, float]


def micros_of(
    span: Span, scheduler_end: float | None, gpus_of_node: float | None, *, is_over: bool
) -> dict[str, int]:
    """GPU-microseconds of a span by state; of a run that goes on only what is reported.

    Whole numbers: their sum over a thousand nodes is the same whatever its order is.
    """
    end = _end_of(span, scheduler_end if is_over else None)
    had = gpu_seconds(span.intervals(end, gpus_of_node, ""))
    reported: States = {}
    for totals in span.goodput.values():
        for state, seconds in totals.items():
            reported[state] = reported.get(state, 0.0) + seconds
    if span.recovery_gpu_seconds:
        reported["recovery"] = reported.get("recovery", 0.0) + span.recovery_gpu_seconds
    total = had if is_over else min(had, sum(reported.values()))
    fitted = _fit(reported, total, "unknown")
    return {state: round(seconds * MICRO) for state, seconds in fitted.items()}


def states_of(micros: Mapping[str, int], run: Run, *, is_over: bool) -> States:
    """GPU-seconds of a run by state, from those of its spans; what was granted bounds them."""
    states = {state: number / MICRO for state, number in micros.items() if number}
    if run.granted is None or not is_over:
        return states
    rest, end = UNUSED if run.spans else "unknown", run.scheduler_end
    total = gpu_seconds(run.granted, until=run.end if run.is_held else math.inf)
    since = math.inf if end is None else end
    late = (each for each in run.granted if each.end_by(math.inf) > since + SLACK_SECONDS)
    held = gpu_seconds(late, since)
    states = _fit(states, total - held, rest)
    return {**states, HELD: held} if held else states


def allocate(run: Run, facts: JobFacts, *, is_over: bool) -> None:
    """Fills in what was granted and used, of each field the heaviest word."""
    model = facts.value("gpu_model") or ""
    stated = facts.scheduler_value("gpu_model", run.scheduler_end) or ""
    run.used = []
    for span in run.spans:
        is_open = span.end is None and span.bound is None and not is_over
        end = None if is_open else _end_of(span, run.scheduler_end)
        of_node = stated or span.gpu_model or model
        run.used += span.intervals(end, facts.gpus_of_node, of_node)
    granted = _granted(run, facts)
    run.granted = None if granted is None else list(share_models(granted, run.used))
    held = run.used if run.granted is None else run.granted
    run.allocation = [each if each.model else each._replace(model=model) for each in held]


def ratios(goodput_seconds: Mapping[GoodputState, float]) -> dict[str, float | None]:
    """Goodput and ETTR of a job; None where no GPU time is reported."""
    shares = JobGoodput(gpu_seconds=goodput_seconds)
    return {"goodput_ratio": shares.productive_ratio, "ettr_ratio": shares.ettr_ratio}


def _end_of(span: Span, scheduler_end: float | None) -> float:
    """Its end, else that of the scheduler or its newest event, at the latest the next begin."""
    if span.end is not None:
        return span.end
    end = span.heard if scheduler_end is None else scheduler_end
    return end if span.bound is None else min(end, span.bound)


def _fit(states: States, total: float, rest: str) -> States:
    """States that sum to a total: scaled down where they are more, with a rest where less."""
    reported = sum(states.values())
    if reported > total:
        return {state: seconds * total / reported for state, seconds in states.items()}
    if total > reported:
        return {**states, rest: states.get(rest, 0.0) + total - reported}
    return states


def _granted(run: Run, facts: JobFacts) -> list[Interval] | None:
    """What the scheduler granted a run; None where it does not state it."""
    span = run.scheduler
    if span is None or not span.has_start:
        return None
    end = span.bound if span.end is None else span.end
    if run.parts:
        models = {each.machine: each.gpu_model for each in run.spans if each.gpu_model}
        found: list[Interval] = []
        for part in run.parts:
            until = part.bound if part.end is None else part.end
            if until is None and end is not None:
                until = max(end, part.heard)
            model = part.gpu_model or models.get(part.machine, "")
            found += part.intervals(until, 0.0, model)
        return found
    words = None if span.end is None and span.bound else facts.words_of_run(span.begin, end)
    return None if words is None else list(step_intervals(span.begin, end, words))
