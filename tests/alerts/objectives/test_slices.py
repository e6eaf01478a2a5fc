"""Slices and what follows from them, by hand: promtool evaluates the recorded series."""

from pathlib import Path

import pytest
import yaml

from lockstep_alerts.alert import OBJECTIVES, SLICES, Area
from lockstep_alerts.output import rule_groups
from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_catalogue import gpu as gpu_metrics
from lockstep_catalogue import ledger, training
from lockstep_catalogue.metric import Kind
from lockstep_catalogue.recorded import (
    BAD_EVENTS,
    BUDGET_REMAINING,
    CHECKPOINT_INTERVAL,
    OBJECTIVE,
    SLICE_BAD,
    SLICE_RATIO,
    SLICES_BAD,
    SLICES_TOTAL,
    SLO_INFO,
    TIME_PERIOD,
)

from ..cases.promtool import check_rules
from ..cases.synthetic import Course, Samples, Stretch, growing, samples, steady

SPEC = read_spec(spec_path())
MINUTES = 50
SECONDS = MINUTES * 60
NODE = {"cluster": "c1", "node": "n1", "instance": "n1:9400"}


def every_five_minutes(step: float, until_minutes: int) -> Course:
    """A value that rises by ``step`` each five minutes."""
    stretches: list[Stretch] = []
    for _ in range(until_minutes // 5):
        stretches += [Stretch(299, 0), Stretch(1, step)]
    return growing(*stretches, Stretch(SECONDS - until_minutes * 60, 0))


def checkpoints(job: str, blocking_seconds: float, until_minutes: int) -> list[Samples]:
    blocked = training.CHECKPOINT_SECONDS
    assert blocked.kind is Kind.HISTOGRAM
    labels = {**NODE, "job_id": job}
    return [
        samples(training.LAST_CHECKPOINT, every_five_minutes(300, until_minutes), **labels),
        samples(
            blocked, every_five_minutes(1, until_minutes), "_count", **labels, writing="blocking"
        ),
        samples(
            blocked,
            every_five_minutes(blocking_seconds, until_minutes),
            "_sum",
            **labels,
            writing="blocking",
        ),
    ]


def losses(job: str, num_bad: int) -> list[Samples]:
    labels = {**NODE, "job_id": job}
    bad = growing(Stretch(SECONDS - 120, 0), Stretch(60, num_bad / 60), Stretch(60, 0))
    return [
        samples(training.LOSS, steady(2.5, SECONDS), **labels),
        samples(training.NONFINITE_STEPS, bad, **labels),
    ]


def gpu(index: int, active_ratio: float, job: str = "") -> list[Samples]:
    labels = {**NODE, "gpu": str(index), "uuid": f"GPU-{index}"}
    owner = samples(gpu_metrics.GPU_OWNER_INFO, steady(1, SECONDS), **labels, job_id=job)
    return [samples(gpu_metrics.GPU_SM_ACTIVE, steady(active_ratio, SECONDS), **labels), owner]


def evaluating_job() -> list[Samples]:
    """Steps of 0.1 s; in the last ten minutes half of the time goes into an evaluation."""
    labels = {**NODE, "job_id": "j3", "rank": "0"}
    calm, late = SECONDS - 600, 600

    def at(before: float, after: float) -> Course:
        return growing(Stretch(calm, before), Stretch(late, after))

    steps = at(10, 5)
    tokens = samples(training.TOKENS, at(10_000, 5_000), **NODE, job_id="j3")
    return [
        samples(training.RANK_INFO, steady(1, SECONDS), **labels),
        samples(training.STEPS, steps, **labels),
        samples(training.PHASE_SECONDS, at(1, 0.5), **labels, phase="forward"),
        samples(training.PHASE_SECONDS, at(0, 0.5), **labels, phase="eval"),
        tokens,
    ]


def jobs_running(number: int) -> Samples:
    return samples(
        ledger.JOBS, steady(number, SECONDS), cluster="c1", instance="l:1", job_status="running"
    )


def sample(name: str, value: float, **labels: str) -> dict[str, object]:
    pairs = ", ".join(f'{key}="{text}"' for key, text in labels.items())
    return {"labels": f"{name}{{{pairs}}}", "value": value}


def query(expression: str, *expected: dict[str, object]) -> dict[str, object]:
    return {"expr": expression, "eval_time": f"{MINUTES}m", "exp_samples": list(expected)}


def of_slo(name: str, slo: str, *values: tuple[str, float]) -> dict[str, object]:
    expected = (sample(name, value, cluster="c1", job_id=job, slo=slo) for job, value in values)
    return query(f'{name}{{slo="{slo}"}}', *expected)


def of_cluster(name: str, slo: str, value: float) -> dict[str, object]:
    return query(f'{name}{{slo="{slo}"}}', sample(name, value, cluster="c1", slo=slo))


def scenario() -> list[Samples]:
    return [
        # Thirty seconds of five minutes is more than a fiftieth; two are less. The first job's
        # newest checkpoint is 25 minutes old, at intervals of five.
        *checkpoints("j1", blocking_seconds=30, until_minutes=25),
        *checkpoints("j2", blocking_seconds=2, until_minutes=MINUTES),
        *losses("j1", num_bad=3),
        *losses("j2", num_bad=0),
        *gpu(0, 0.9, "j1"),
        *gpu(1, 0.05, "j1"),
        *gpu(2, 0.0),
        *evaluating_job(),
        jobs_running(3),
    ]


def expectations() -> list[dict[str, object]]:
    telemetry = {"cluster": "c1", "slo": "telemetry", "sloth_id": "c1-telemetry"}
    sloth = {**telemetry, "sloth_service": "c1", "sloth_slo": "telemetry"}
    return [
        query(
            f"round({CHECKPOINT_INTERVAL.name}, 10)",
            sample("", 300, cluster="c1", job_id="j1"),
            sample("", 300, cluster="c1", job_id="j2"),
        ),
        of_slo(SLICE_BAD.name, "recovery_point", ("j1", 1), ("j2", 0)),
        of_slo(SLICE_BAD.name, "checkpoint_blocking", ("j1", 1), ("j2", 0)),
        of_slo(SLICE_BAD.name, "loss_convergence", ("j1", 1), ("j2", 0)),
        # An evaluation is no slow step: neither of the two sees it.
        query(
            f'round({SLICE_RATIO.name}{{slo=~"throughput|step_latency"}}, 0.01)',
            sample("", 1, cluster="c1", job_id="j3", slo="throughput"),
            sample("", 1, cluster="c1", job_id="j3", slo="step_latency"),
        ),
        of_cluster(SLICES_TOTAL.name, "gpu_activity", 2),
        of_cluster(SLICES_BAD.name, "gpu_activity", 1),
        of_cluster(SLICES_TOTAL.name, "telemetry", 3),
        of_cluster(SLICES_BAD.name, "telemetry", 2),
        query(f'{OBJECTIVE.name}{{slo="telemetry"}}', sample(OBJECTIVE.name, 0.99, **sloth)),
        query(
            f'{SLO_INFO.name}{{slo="telemetry"}}',
            sample(SLO_INFO.name, 1, **sloth, sloth_objective="99", sloth_spec="lockstep/v1"),
        ),
        query(f'{TIME_PERIOD.name}{{slo="telemetry"}}', sample(TIME_PERIOD.name, 7, **sloth)),
        # Two of three jobs unseen, all of the time: 1 - (2 / 3) / 0.01.
        query(
            f'round({BUDGET_REMAINING.name}{{slo="telemetry"}}, 0.1)', sample("", -65.7, **sloth)
        ),
    ]


def promtool(
    folder: Path, areas: list[Area], series: list[Samples], expected: list[dict[str, object]]
) -> None:
    names = []
    for area in areas:
        groups = rule_groups(area, SPEC, Delivery())
        (folder / area.rules_file).write_text(yaml.safe_dump({"groups": groups}))
        names += [group["name"] for group in groups]
    values = [{"series": each.series, "values": each.course.promtool(15)} for each in series]
    test = {"interval": "15s", "input_series": values, "promql_expr_test": expected}
    document = {
        "rule_files": [area.rules_file for area in areas],
        "evaluation_interval": "1m",
        "group_eval_order": names,
        "tests": [test],
    }
    check_rules(folder, document)


@pytest.mark.promtool
def test_slices_are_good_or_bad_as_counted_by_hand(tmp_path: Path) -> None:
    promtool(tmp_path, [SLICES, OBJECTIVES], scenario(), expectations())


def counted(job_class: str, kind: str, number: float) -> Samples:
    labels = {"cluster": "c1", "slo": "job_success", "window": "28d", "instance": "l:1"}
    named = {"job_class": job_class} if job_class else {}
    course = steady(number, SECONDS)
    return samples(ledger.SLO_EVENTS, course, **labels, **named, slo_event=kind)


@pytest.mark.promtool
def test_classes_are_counted_by_themselves_and_together(tmp_path: Path) -> None:
    by_class = {"": (10.0, 8.0), "large": (20.0, 17.0)}
    bad, window = BAD_EVENTS.name, {"cluster": "c1", "slo": "job_success", "window": "28d"}
    series = [
        counted(job_class, kind, number)
        for job_class, (total, good) in by_class.items()
        for kind, number in (("total", total), ("good", good))
    ]
    slo = OBJECTIVE.name
    ids = {"cluster": "c1", "slo": "job_success", "sloth_service": "c1"}
    large = {"job_class": "large", "sloth_id": "c1-job_success-large"}
    expected = [
        query(bad, sample(bad, 5, **window), sample(bad, 3, **window, job_class="large")),
        # A class without a promise has that of the cluster.
        query(
            slo,
            sample(slo, 0.95, **ids, sloth_id="c1-job_success", sloth_slo="job_success"),
            sample(slo, 0.95, **ids, **large, sloth_slo="job_success-large"),
        ),
        query(
            f"round({BUDGET_REMAINING.name}, 0.001)",
            # 1 - (5 / 30) / 0.05 and 1 - (3 / 20) / 0.05.
            sample("", -2.333, **ids, sloth_id="c1-job_success", sloth_slo="job_success"),
            sample("", -2, **ids, **large, sloth_slo="job_success-large"),
        ),
    ]
    promtool(tmp_path, [OBJECTIVES], series, expected)
