"""For every alert the cases that prove it: it fires by its deadline, and it keeps silent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lockstep_alerts.model import (
    Limits,
    NotFiniteLimits,
    StalledLimits,
    StragglerLimits,
    Symptom,
)
from lockstep_alerts.synthetic import (
    JOB,
    NUM_RANKS,
    SCRAPE_SECONDS,
    Samples,
    Stretch,
    growing,
    healthy,
    moving,
    one_late,
    present,
    samples,
    steady,
    stepping,
)
from lockstep_catalogue import training

ONSET_SECONDS = 60
_DELIVERY_SECONDS = 10  # of each deadline: what Alertmanager waits and sends
_HEALTHY_STEP_SECONDS = 0.1
_LATE_RANK = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What is fed in, when it is looked at, and the labels of what fires then; none is silence."""

    name: str
    series: list[Samples]
    at_seconds: int
    fires: Mapping[str, str] | None = None


def _extra_for(ratio: float) -> float:
    """Seconds more a step of one rank that make this share of the lengthened step."""
    return _HEALTHY_STEP_SECONDS * ratio / (1 - ratio)


def _straggling(symptom: Symptom, extra: Mapping[str, float]) -> list[Samples]:
    after = symptom.deadline.seconds
    whole = ONSET_SECONDS + after
    steps = stepping(healthy(ONSET_SECONDS), one_late(after, _LATE_RANK, extra))
    return [*present(whole), *moving(Stretch(whole, 1)), *steps]


def _straggler(symptom: Symptom, limits: StragglerLimits) -> list[Case]:
    by_deadline = ONSET_SECONDS + symptom.deadline.seconds - _DELIVERY_SECONDS
    above = _straggling(symptom, {"backward": _extra_for(1.2 * limits.above_ratio)})
    below = _straggling(symptom, {"backward": _extra_for(0.8 * limits.above_ratio)})
    pause = _straggling(symptom, {"checkpoint": _extra_for(2 * limits.above_ratio)})
    culprit = {"rank": str(_LATE_RANK), "phase": "backward", "node": "n1"}
    return [
        Case(name="one rank late", series=above, at_seconds=by_deadline, fires={**JOB, **culprit}),
        Case(name="less late than that", series=below, at_seconds=by_deadline),
        Case(name="one rank writes the checkpoint", series=pause, at_seconds=by_deadline),
    ]


def _stopped(seconds: int, median_bucket: tuple[float, float], state: str) -> list[Samples]:
    """A job that stops at the onset; its step times lie between the two bounds."""
    lower, upper = (f"{bound:g}" for bound in median_bucket)
    whole = ONSET_SECONDS + seconds
    node = {"instance": "n1:9400", **JOB, "node": "n1"}
    counts = {lower: steady(0, whole), upper: steady(600, whole), "+Inf": steady(600, whole)}
    waiting = [
        samples(
            training.RANK_WAITING,
            steady(0 if rank == _LATE_RANK else 1, whole),
            instance="n1:9400",
            **JOB,
            rank=str(rank),
        )
        for rank in range(NUM_RANKS)
    ]
    return [
        *present(whole, state),
        *moving(Stretch(ONSET_SECONDS, 1), Stretch(seconds, 0)),
        *(samples(training.STEP_SECONDS, v, "_bucket", **node, le=le) for le, v in counts.items()),
        *waiting,
    ]


def _stalled(symptom: Symptom, limits: StalledLimits) -> list[Case]:
    floor = limits.at_least.seconds
    by_deadline = symptom.deadline.seconds - _DELIVERY_SECONDS
    bounds = training.STEP_SECONDS.buckets
    quick = (bounds[0], bounds[1])
    slow = next(b for b in pairwise(bounds) if limits.median_steps * b[0] > floor)
    patience = int(limits.median_steps * slow[0])
    told: list[tuple[str, int, tuple[float, float], str, bool]] = [
        ("nobody moves", by_deadline, quick, "training", True),
        ("not long enough", floor - SCRAPE_SECONDS, quick, "training", False),
        ("long steps", patience - SCRAPE_SECONDS, slow, "training", False),
        ("a checkpoint is written", by_deadline, quick, "checkpoint", False),
        ("the job is over", by_deadline, quick, "done", False),
    ]
    return [
        Case(
            name=name,
            series=_stopped(after, bucket, state),
            at_seconds=ONSET_SECONDS + after,
            fires=JOB if fires else None,
        )
        for name, after, bucket, state, fires in told
    ]


def _not_finite(symptom: Symptom, limits: NotFiniteLimits) -> list[Case]:
    by_deadline = ONSET_SECONDS + symptom.deadline.seconds - _DELIVERY_SECONDS
    long_after = ONSET_SECONDS + limits.window.seconds * 3 // 2
    after = by_deadline - ONSET_SECONDS
    unborn = f"_x{ONSET_SECONDS // SCRAPE_SECONDS}"
    told: list[tuple[str, str, int, bool]] = [
        (
            "the counter grows",
            growing(Stretch(ONSET_SECONDS, 0), Stretch(after, 1)),
            by_deadline,
            True,
        ),
        ("it is born above zero", f"{unborn} {steady(1, after)}", by_deadline, True),
        ("it stays at zero", steady(0, by_deadline), by_deadline, False),
        ("it grew long ago", steady(3, long_after), long_after, False),
    ]
    return [
        Case(
            name=name,
            series=[
                samples(training.NONFINITE_STEPS, values, instance="n1:9400", **JOB, node="n1")
            ],
            at_seconds=at,
            fires=JOB if fires else None,
        )
        for name, values, at, fires in told
    ]


CASES: Mapping[type[Limits], Callable[[Symptom, Any], list[Case]]] = {
    StragglerLimits: _straggler,
    StalledLimits: _stalled,
    NotFiniteLimits: _not_finite,
}


def cases_of(symptom: Symptom) -> list[Case]:
    """The cases of one alert, firing ones first."""
    return CASES[type(symptom.limits)](symptom, symptom.limits)


def promtool_test(symptom: Symptom, case: Case) -> dict[str, object]:
    """One case in the words of a promtool test file."""
    selector = f'ALERTS{{alertname="{symptom.alert}", alertstate="firing"}}'
    expected: list[dict[str, object]] = []
    if case.fires is not None:
        own = {"alertname": symptom.alert, "alertstate": "firing", "severity": symptom.severity}
        inside = ", ".join(f'{name}="{value}"' for name, value in {**own, **case.fires}.items())
        expected.append({"labels": f"ALERTS{{{inside}}}", "value": 1})
    outcome = "fires" if expected else "is silent"
    return {
        "name": f"{symptom.alert} {outcome}: {case.name}",
        "interval": f"{SCRAPE_SECONDS}s",
        "input_series": [{"series": one.series, "values": one.values} for one in case.series],
        "promql_expr_test": [
            {"expr": selector, "eval_time": f"{case.at_seconds}s", "exp_samples": expected}
        ],
    }
