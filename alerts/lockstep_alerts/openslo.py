"""Objectives as OpenSLO v1: a ratio of good or bad events to all, over a rolling window.

What OpenSLO has no words for stands in annotations:
limits against chance, the floor of GPUs, limits of slices, and which alerts follow. Slices are
exported as the events that they are here, for OpenSLO's own slices are of one series and not of
every job.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import yaml

from lockstep_alerts.objectives.counter import Counter
from lockstep_alerts.objectives.objective import Objective
from lockstep_alerts.reading.options import spec_option
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_catalogue.ledger import JOB_CLASS, SLO, WINDOW
from lockstep_catalogue.metric import Kind
from lockstep_catalogue.promql import LE, Matcher, by, eq, select
from lockstep_catalogue.recorded import BAD_EVENTS, TOTAL_EVENTS

_DISPLAYED = 63


def documents(objectives: Sequence[Objective]) -> Iterator[dict[str, object]]:
    """One document for each objective, and one for each class of jobs that has its own."""
    for objective in objectives:
        for job_class, good_ratio in objective.goals.items():
            yield _document(objective, job_class, good_ratio)


def _document(objective: Objective, job_class: str, good_ratio: float) -> dict[str, object]:
    name = objective.slo.replace("_", "-") + (f"-{job_class.lower()}" if job_class else "")
    return {
        "apiVersion": "openslo/v1",
        "kind": "SLO",
        "metadata": {
            "name": name,
            "displayName": name.replace("-", " ")[:_DISPLAYED],
            "annotations": dict(_annotations(objective, job_class)),
        },
        "spec": {
            "description": f"Bad are {objective.bad}.",
            "service": "lockstep",
            "indicator": {
                "metadata": {"name": f"{name}-ratio"},
                "spec": {"ratioMetric": _ratio(objective, job_class)},
            },
            "timeWindow": [{"duration": objective.period, "isRolling": True}],
            "budgetingMethod": "Occurrences",
            "objectives": [{"displayName": name, "target": good_ratio}],
        },
    }


def _annotations(objective: Objective, job_class: str) -> Iterator[tuple[str, str]]:
    own_rates = {
        limit.window: f"{limit.burn_rate:g}"
        for limit in (*objective.page_limits, *objective.ticket_limits)
        if limit.burn_rate is not None
    }
    values = {
        "measure": objective.measure,
        "bad": objective.bad,
        "page": objective.page,
        "ticket": objective.ticket,
        "job-class": job_class,
        "min-gpus": f"{objective.min_gpus:g}" if objective.min_gpus else "",
        "min-ratio": _text(objective.min_ratio),
        "page-min-ratio": _text(objective.page_min_ratio),
        "burn-rates": " ".join(f"{w}={rate}" for w, rate in own_rates.items()),
    }
    for field, value in values.items():
        if value:
            yield f"lockstep-{field}", value


def _text(number: float | None) -> str:
    return "" if number is None else f"{number:g}"


def _ratio(objective: Objective, job_class: str) -> dict[str, object]:
    if objective.counter is not None:
        return _export_counter(objective.counter)
    here = (
        Matcher(SLO, "=", objective.slo),
        eq(JOB_CLASS, job_class),
        eq(WINDOW, objective.period),
    )
    bad, total = select(BAD_EVENTS, *here), select(TOTAL_EVENTS, *here)
    return {"counter": False, "bad": _source(bad), "total": _source(total)}


def _export_counter(counter: Counter) -> dict[str, object]:
    is_histogram = counter.metric.kind is Kind.HISTOGRAM
    every = (*counter.all, eq(LE, "+Inf")) if is_histogram else counter.all
    good = by("sum", select(counter.metric, *counter.all, *counter.good))
    total = by("sum", select(counter.metric, *every))
    return {
        "counter": True,
        "good": _source(good.replace("sum by () ", "sum")),
        "total": _source(total.replace("sum by () ", "sum")),
    }


def _source(query: str) -> dict[str, object]:
    return {"metricSource": {"type": "Prometheus", "spec": {"query": query}}}


@click.command()
@spec_option
def openslo(spec: Path | None) -> None:
    """Print every objective as an OpenSLO v1 document."""
    objectives = read_spec(spec or spec_path()).objectives
    text = yaml.safe_dump_all(documents(objectives), sort_keys=False, width=1000)
    click.echo(text, nl=False)
