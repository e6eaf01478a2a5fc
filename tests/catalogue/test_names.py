"""Names, labels and series budgets of the catalogue."""

import re
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from lockstep_catalogue import (
    METRICS,
    METRICS_NAMED,
    RECORDED,
    Kind,
    Label,
    Metric,
    Recorded,
    Series,
    Unit,
)
from lockstep_catalogue.training import RANK_METRICS, STEP_SECONDS, STEPS

MAX_RANK_SERIES = 12
FORBIDDEN_LABELS = {"job", "instance", "user", "path", "step", "loss"}
ALL: tuple[Series, ...] = (*METRICS, *RECORDED)


def changed(metric: Metric = STEPS, **values: Any) -> Metric:
    """A metric with other fields."""
    return replace(metric, **values)


@pytest.mark.parametrize(
    ("name", "kind", "unit"),
    [
        ("lockstep_train_x_total", Kind.COUNTER, Unit.NONE),
        ("lockstep_train_x_seconds_total", Kind.COUNTER, Unit.SECONDS),
        ("lockstep_train_x_timestamp_seconds", Kind.GAUGE, Unit.TIMESTAMP_SECONDS),
        ("lockstep_gpu_x_bytes_per_second", Kind.GAUGE, Unit.BYTES_PER_SECOND),
        ("lockstep_gpu_x_seconds_of_x", Kind.GAUGE, Unit.NONE),
    ],
)
def test_kind_and_unit_follow_from_the_name(name: str, kind: Kind, unit: Unit) -> None:
    assert (changed(name=name).kind, changed(name=name).unit) == (kind, unit)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("job:lockstep_train_x_seconds:per_step", Unit.SECONDS),
        ("job:lockstep_train_x_seconds:rate", Unit.NONE),
        ("job:lockstep_train_x:min_ratio", Unit.RATIO),
        ("job:sli_error:ratio_rate1h", Unit.RATIO),
    ],
)
def test_the_unit_of_a_recorded_series_follows_from_its_operation(name: str, unit: Unit) -> None:
    assert Recorded(name=name, level="job", labels=(), help="A series.").unit is unit


def find_faults(metric: Metric) -> Iterator[str]:
    if not re.fullmatch(r"[A-Z0-9].*\.", metric.help):
        yield f"{metric.name}: its help is not a sentence"
    if not metric.source:
        yield f"{metric.name}: it has no source"
    if len(set(metric.label_names)) < len(metric.label_names):
        yield f"{metric.name}: a label is there twice"
    for label in FORBIDDEN_LABELS & set(metric.label_names):
        yield f"{metric.name}: label {label}"


def test_a_metric_has_a_help_sentence_a_source_and_no_label_twice() -> None:
    assert [fault for metric in METRICS for fault in find_faults(metric)] == []


def test_no_name_is_declared_twice() -> None:
    assert len(METRICS_NAMED) == len(METRICS)
    assert len({series.name for series in ALL}) == len(ALL)


def test_a_label_name_has_one_meaning() -> None:
    labels = {label for series in ALL for label in series.labels}
    assert len({label.name for label in labels}) == len(labels)


def test_a_rank_costs_at_most_twelve_series() -> None:
    assert all(metric.kind is not Kind.HISTOGRAM for metric in RANK_METRICS)
    series = sum(
        prod(len(label.values) for label in metric.labels if label.values)
        for metric in RANK_METRICS
    )
    assert series <= MAX_RANK_SERIES


@pytest.mark.parametrize("name", ["lockstep_steps_total", "steps_total", "lockstep_train_X_total"])
def test_a_name_against_the_rules_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        changed(name=name)


@pytest.mark.parametrize(
    ("metric", "values", "sentence"),
    [
        (STEPS, {"name": STEPS.name + "\n"}, "lower case"),
        (STEPS, {"help": "no full stop"}, "full stop"),
        (STEP_SECONDS, {"buckets": (2.0, 1.0)}, "must rise"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(
    metric: Metric, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        changed(metric, **values)


@pytest.mark.parametrize("name", ["job", "instance", "Rank", "rank\n"])
def test_a_label_that_prometheus_owns_or_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not allowed"):
        Label(name=name, help="never")
