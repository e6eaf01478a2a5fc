"""GPU time of runs by goodput state."""

from collections.abc import Mapping

from lockstep_catalogue.vocabulary import GoodputState
from lockstep_ledger.merge.facts import JobFacts
from lockstep_ledger.merge.runs import Run
from lockstep_ledger.merge.spans import Span
from lockstep_outcomes.progress.ettr import JobGoodput

_MICROSECONDS = 1_000_000
States = dict[str, float]


def micros_of(
    span: Span, scheduler_end: float | None, gpus_of_node: float | None, *, is_over: bool
) -> dict[str, int]:
    """GPU-microseconds of a span by state; of a run that goes on only what is reported.

    Whole numbers: their sum over a thousand nodes is the same whatever its order is.
    """
    gpus = span.find_gpus(gpus_of_node)
    reported = _reported(span, gpus)
    end = span.end
    if end is None:  # as the scheduler states it, or with its newest event
        end = span.heard if scheduler_end is None or not is_over else scheduler_end
        end = end if span.bound is None else min(end, span.bound)
    had = max(0.0, end - span.begin) * gpus
    total = had if is_over else min(had, sum(reported.values()))
    return {state: round(s * _MICROSECONDS) for state, s in _fit(reported, total).items()}


def states_of(micros: Mapping[str, int], run: Run, facts: JobFacts, *, is_over: bool) -> States:
    """GPU-seconds of a run by state, from those of its spans."""
    states = {state: number / _MICROSECONDS for state, number in micros.items() if number}
    granted = _granted(run, facts) if is_over else None
    return states if granted is None else _fit(states, granted)


def gpus_of(run: Run, facts: JobFacts) -> float:
    """GPUs that a run holds at its end."""
    if run.spans:
        return sum(span.find_gpus(facts.gpus_of_node) for span in run.newest)
    return facts.scheduler_value("num_gpus", run.scheduler_end) or 0.0


def ratios(goodput_seconds: Mapping[GoodputState, float]) -> dict[str, float | None]:
    """Goodput and ETTR of a job; None where no GPU time is reported."""
    shares = JobGoodput(gpu_seconds=goodput_seconds)
    return {"goodput_ratio": shares.productive_ratio, "ettr_ratio": shares.ettr_ratio}


def _reported(span: Span, gpus: float) -> States:
    states: States = {}
    for totals in span.goodput.values():
        for state, seconds in totals.items():
            states[state] = states.get(state, 0.0) + seconds
    if span.recovery_seconds:
        states["recovery"] = states.get("recovery", 0.0) + span.recovery_seconds * gpus
    return states


def _fit(states: States, total: float) -> States:
    """States that sum to a total: scaled down where they are more, unknown where they are less."""
    reported = sum(states.values())
    if reported > total:
        return {state: seconds * total / reported for state, seconds in states.items()}
    if total > reported:
        return {**states, "unknown": states.get("unknown", 0.0) + total - reported}
    return states


def _granted(run: Run, facts: JobFacts) -> float | None:
    """GPU-seconds that the scheduler granted a run; None where it does not state them."""
    span = run.scheduler
    if span is None or span.end is None or not span.has_start:
        return None
    if run.parts:
        ends = [(part, span.end if part.end is None else part.end) for part in run.parts]
        return sum(max(0.0, end - p.begin) * (p.gpus_started or 0.0) for p, end in ends)
    gpus = None if run.has_parts else facts.scheduler_value("num_gpus", span.end)
    return None if gpus is None else float((span.end - span.begin) * gpus)
