"""Names, labels and series budgets of the catalogue."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from math import prod
from pathlib import Path
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
    palette,
)
from lockstep_catalogue.gpu import GPU_POWER
from lockstep_catalogue.labels import CLUSTER, GPU, JOB_ID, PHASE, RANK, UUID
from lockstep_catalogue.palette import STATE_COLOURS
from lockstep_catalogue.promql import (
    by,
    eq,
    histogram_quantile,
    increase,
    lower_median_by,
    median_by,
    one_of,
    rate,
    select,
)
from lockstep_catalogue.training import LOSS, PHASE_SECONDS, RANK_METRICS, STEP_SECONDS, STEPS
from lockstep_catalogue.vocabulary import GOODPUT_STATES
from lockstep_dashboards.layout import NAMED_COLORS

MAX_RANK_SERIES = 12
FORBIDDEN_LABELS = {"job", "instance", "user", "path", "step", "loss"}
ALL: tuple[Series, ...] = (*METRICS, *RECORDED)


def changed(metric: Metric = STEPS, **values: Any) -> Metric:
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


BOARDS = Path(__file__).parents[2] / "dashboards" / "generated"


def test_every_goodput_state_has_a_colour_of_its_own() -> None:
    assert list(STATE_COLOURS) == list(GOODPUT_STATES)
    assert all(a != b for a, b in combinations(STATE_COLOURS.values(), 2))


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_every_colour_has_a_contrast_of_3_to_1_in_both_themes() -> None:
    named = [x for x in vars(palette).values() if isinstance(x, str) and x.startswith("#")]
    for color in (*STATE_COLOURS.values(), *named, *palette.SERIES, *NAMED_COLORS.values()):
        # The grounds of panels: light, dark, and Grafana's dark.
        for ground in ("#ffffff", "#1a1e24", "#181b1f"):
            assert contrast(color, ground) >= 3, (color, ground)


def test_boards_draw_each_goodput_state_in_its_colour() -> None:
    drawn = {
        override["matcher"]["options"]: property_["value"]["fixedColor"].lower()
        for path in BOARDS.glob("*.json")
        for override in overrides(json.loads(path.read_text(encoding="utf-8")))
        for property_ in override["properties"]
        if property_["id"] == "color" and override["matcher"]["options"] in STATE_COLOURS
    }
    assert drawn == STATE_COLOURS


def overrides(node: Any) -> list[Any]:
    """All overrides of the panels below a node of a board."""
    if isinstance(node, list):
        return [found for each in node for found in overrides(each)]
    if not isinstance(node, dict):
        return []
    return [*node.get("overrides", []), *overrides(list(node.values()))]


def objections(expressions: dict[str, str], folder: Path) -> str:
    """What promtool objects to the expressions as recording rules; empty when nothing."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH")
    rules = [{"record": name, "expr": text} for name, text in expressions.items()]
    path = folder / "rules.yaml"
    path.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", path], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stderr + done.stdout


def test_promtool_takes_every_builder_on_every_metric(tmp_path: Path) -> None:
    expressions = {f"select:{metric.name}": select(metric) for metric in METRICS}
    counted = [metric for metric in METRICS if metric.kind is not Kind.GAUGE]
    expressions |= {f"rate:{metric.name}": rate(metric, "1m") for metric in counted}
    expressions |= {f"increase:{metric.name}": increase(metric, "1m") for metric in counted}
    expressions["quantile:x"] = histogram_quantile(0.99, STEP_SECONDS, "5m", JOB_ID)
    expressions["median:x"] = median_by(select(GPU_POWER), GPU, UUID)
    expressions["lower:x"] = lower_median_by(select(GPU_POWER), GPU)
    expressions["matchers:x"] = by(
        "sum", rate(PHASE_SECONDS, "1m", eq(CLUSTER, "c"), one_of(PHASE, "data", "sync")), RANK
    )
    assert objections(expressions, tmp_path) == ""


def test_a_label_that_the_series_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="has no label phase"):
        select(STEPS, eq(PHASE, "sync"))


@pytest.mark.parametrize("matcher", [eq, one_of])
def test_a_value_outside_a_closed_set_is_refused(matcher: object) -> None:
    assert callable(matcher)
    with pytest.raises(ValueError, match="phase='sink' is none of data, forward"):
        matcher(PHASE, "sink")


def test_a_rate_of_a_gauge_is_refused() -> None:
    with pytest.raises(ValueError, match="is a gauge"):
        rate(LOSS, "1m")
    with pytest.raises(ValueError, match="is a gauge"):
        increase(LOSS, "1m")


def is_well_named(recorded: Recorded) -> bool:
    if recorded.name == recorded.level:
        return True  # a name that others know, without a level
    level, metric, operations = recorded.name.split(":")
    return (
        level in {recorded.level, "_".join(recorded.label_names)}
        and (metric.startswith("slo" if recorded.level == "slo" else "lockstep_") or bool(level))
        and bool(operations)
    )


def test_a_recorded_series_begins_with_the_labels_that_it_keeps() -> None:
    assert [recorded.name for recorded in RECORDED if not is_well_named(recorded)] == []
