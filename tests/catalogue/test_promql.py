"""PromQL is built from catalogue objects: undeclared names are refused, and promtool takes all."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from lockstep_catalogue import METRICS, RECORDED, Kind, Recorded
from lockstep_catalogue.gpu import GPU_POWER
from lockstep_catalogue.labels import CLUSTER, GPU, JOB_ID, PHASE, RANK, UUID
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
from lockstep_catalogue.training import LOSS, PHASE_SECONDS, STEP_SECONDS, STEPS


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
