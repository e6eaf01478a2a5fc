"""GPU time of runs: what was granted beside what was used, and what was done with it by state."""

import math
from collections.abc import Mapping

from lockstep_catalogue.vocabulary import GoodputState
from lockstep_ledger.merge.allocation import (
    MICRO,
    Interval,
    gpu_seconds,
    held,
    share_models,
    step_intervals,
    steps_of,
    unused_of,
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


def states_of(run: Run) -> States:
    """GPU-seconds of a run by state, from those of its spans; they sum to its allocation.

    Of one that goes on these are up to the newest word on it; what no report explains is unknown.
    """
    total, end = held(run.steps, run.until), run.scheduler_end
    unused = min(total, gpu_seconds(run.unused, until=run.until))
    late = (i for i in run.granted or () if end and i.end_by(math.inf) > end + SLACK_SECONDS)
    after_end = min(unused, gpu_seconds(late, end or 0.0, run.until))
    states = {state: number / MICRO for state, number in run.micros.items() if number}
    states = _fit(states, total - unused, "unknown")
    rest = UNUSED if run.spans else "unknown"
    for state, seconds in ((rest, unused - after_end), (HELD, after_end)):
        if seconds:
            states[state] = states.get(state, 0.0) + seconds
    return states


def allocate(run: Run, facts: JobFacts, *, is_over: bool) -> None:
    """Fills in what was granted and used, of each field the heaviest word."""
    model = facts.value("gpu_model") or ""
    stated = facts.scheduler_value("gpu_model", run.scheduler_end) or ""
    run.used = []
    for span in run.spans:
        is_open = span.end is None and span.bound is None and not is_over
        end = None if is_open else _end_of(span, run.scheduler_end if is_over else None)
        of_node = stated or span.gpu_model or model
        run.used += span.intervals(end, facts.gpus_of_node, of_node)
    granted = _granted(run, facts, is_over=is_over)
    run.granted = None if granted is None else list(share_models(granted, run.used))
    run.unused = list(unused_of(run.granted or (), run.used))
    heavier = run.used if run.granted is None else run.granted
    run.allocation = [each if each.model else each._replace(model=model) for each in heavier]
    run.steps, run.is_over = steps_of(run.allocation), is_over


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


def _granted(run: Run, facts: JobFacts, *, is_over: bool) -> list[Interval] | None:
    """What the scheduler granted a run; None where it does not state it.

    What it does not end itself ends with the run, and without nodes where the next one begins.
    """
    span = run.scheduler
    if span is None or not span.has_start:
        return None
    end = span.end if run.spans or span.end is not None else span.bound
    end = run.end if end is None and is_over else end
    if run.parts:
        models = {each.machine: each.gpu_model for each in run.spans if each.gpu_model}
        found: list[Interval] = []
        for part in run.parts:
            ends = [time for time in (part.bound, end and max(end, part.heard)) if time is not None]
            until = min(ends, default=None) if part.end is None else part.end
            model = part.gpu_model or models.get(part.machine, "")
            found += part.intervals(until, 0.0, model)
        return found
    words = facts.words_of_run(span.begin, end)
    return None if words is None else list(step_intervals(span.begin, end, words))
