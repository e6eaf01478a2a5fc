"""Losses over hours: work at risk, restarts that bring nothing, a scheduler that starts nothing."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from lockstep_alerts.conditions.joins import RANK_LABELS, phase_of_most_excess
from lockstep_alerts.output import render, write_files
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_catalogue import agent, foreign, gpu, ledger, recorded, training

from .cases.promtool import check_rules
from .cases.synthetic import (
    JOB,
    Course,
    Samples,
    Stretch,
    growing,
    healthy,
    sample_node,
    samples,
    steady,
    training_job,
)

SPEC = read_spec(spec_path(), Duration("60s"))
NODE = {"instance": "n1:9400", **JOB, "node": "n1"}
HOUR, LIFE = 3600, 900


def check(folder: Path, area: str, series: Iterable[Samples], *tests: dict[str, object]) -> None:
    """Runs promtool's tests on the rules of an area, scraped and evaluated once a minute."""
    name = f"lockstep-{area}.rules.yaml"
    write_files(folder, {name: render(SPEC, Delivery())[name]})
    inputs = [{"series": each.series, "values": each.course.promtool(60)} for each in series]
    test = {"interval": "60s", "input_series": inputs, "promql_expr_test": list(tests)}
    check_rules(folder, {"rule_files": [name], "evaluation_interval": "60s", "tests": [test]})


def value(expression: str, at: str, labels: str, number: float) -> dict[str, object]:
    samples = [{"labels": labels, "value": number}]
    return {"expr": expression, "eval_time": at, "exp_samples": samples}


def firing(alert: str) -> str:
    return f'count by (job_id, cause) (ALERTS{{alertname="{alert}", alertstate="firing"}})'


def circles(gained: int) -> list[Samples]:
    """A job that is restarted every quarter of an hour, each time so many steps later."""
    up, back = Stretch(LIFE - 1, 1), Stretch(1, gained - LIFE + 1)
    attempts = growing(*(Stretch(LIFE - 1, 0), Stretch(1, 1)) * 10)
    steps = growing(*(up, back) * 10, start=50_000)
    return [
        samples(training.STEP, steps, **NODE),
        samples(training.ATTEMPT_NUMBER, attempts, **NODE),
        *training_job(healthy(10 * LIFE)),
    ]


@pytest.mark.promtool
@pytest.mark.parametrize("gained", [0, 8_000])
def test_a_job_whose_restarts_come_no_further_makes_no_progress(
    tmp_path: Path, gained: int
) -> None:
    stands = value(firing("JobNotProgressing"), "130m", '{job_id="j1"}', 1)
    test = stands if not gained else {**stands, "exp_samples": []}
    check(tmp_path, "jobs", circles(gained), test)


def working(durable: Course) -> list[Samples]:
    """Eight ranks that are productive all the time."""
    seconds = durable.stretches[-1].seconds + 2 * HOUR
    productive = growing(Stretch(seconds, 8))
    return [
        samples(training.GOODPUT_SECONDS, productive, **NODE, goodput="productive"),
        samples(training.LAST_CHECKPOINT, durable, **NODE),
        samples(training.ATTEMPT_NUMBER, steady(0, seconds), **NODE),
    ]


@pytest.mark.promtool
def test_work_is_at_risk_since_the_newest_durable_checkpoint_and_usual_by_what_they_saved(
    tmp_path: Path,
) -> None:
    half = (Stretch(HOUR // 2 - 1, 0), Stretch(1, HOUR // 2))
    durable = growing(*half * 4, Stretch(HOUR, 0))
    gpu_hours = f"round({recorded.WORK_AT_RISK.name} / 3600, 0.5)"
    usual = f"round({recorded.USUAL_AT_RISK.name} / 3600, 0.5)"
    labels = '{cluster="c1", job_id="j1"}'
    check(
        tmp_path,
        "slices",
        working(durable),
        value(gpu_hours, "118m", labels, 4),
        value(usual, "118m", labels, 4),
        value(gpu_hours, "150m", labels, 4),
        value(gpu_hours, "178m", labels, 8),
    )


@pytest.mark.promtool
@pytest.mark.parametrize("idle", [8, 0])
def test_a_scheduler_that_starts_nothing_loses_the_idle_gpus_and_a_full_cluster_none(
    tmp_path: Path, idle: int
) -> None:
    seconds = 7 * HOUR
    of_ledger = {"instance": "ledger:9450", "cluster": "c1"}
    started = {**of_ledger, "queue": "q1", "project": "p1", "job_class": "mixed"}
    gpus = [sample_node(gpu.GPU_INFO, steady(1, seconds), uuid=f"G{n}") for n in range(idle)]
    series = [
        samples(ledger.JOBS, steady(3, seconds), **of_ledger, job_status="pending"),
        samples(ledger.JOBS_STARTED, steady(9, seconds), **started),
    ]
    stands = value(firing("ClusterLosing"), "390m", '{cause="scheduler"}', 1)
    check(tmp_path, "fabric", [*series, *gpus], stands if idle else {**stands, "exp_samples": []})


@pytest.mark.promtool
def test_a_node_carried_what_ran_when_its_agent_was_last_seen_however_short(tmp_path: Path) -> None:
    name = "lockstep-jobs.rules.yaml"
    spec = read_spec(spec_path(), Duration("5s"))
    write_files(tmp_path, {name: render(spec, Delivery())[name]})
    ranks = f'{training.RANKS.name}{{cluster="c1", node="n1", state="training", job_id="%s"}}'
    inputs = [
        {"series": f'{agent.AGENT_INFO.name}{{cluster="c1", node="n1"}}', "values": "1x20 stale"},
        {"series": ranks % "runs", "values": "_x13 1x7 stale"},
        {"series": ranks % "left", "values": "_x13 1x4 stale"},
    ]
    node = f"count by (job_id) ({recorded.CARRIED.name} > 0)"
    gone = [value(node, at, '{job_id="runs"}', 1) for at in ("3m", "1h")]
    test = {"interval": "5s", "input_series": inputs, "promql_expr_test": [
        *gone, {**value(node, "63m", "", 1), "exp_samples": []},
    ]}  # fmt: skip
    check_rules(tmp_path, {"rule_files": [name], "evaluation_interval": "5s", "tests": [test]})


@pytest.mark.parametrize(
    ("standing", "forward", "phase"), [(0, 3, "forward"), (1, 3, "backward"), (1, 5, "forward")]
)
def test_the_phase_of_a_page_stands_until_another_takes_several_times_as_long(
    standing: int, forward: float, phase: str, tmp_path: Path
) -> None:
    rank = {**JOB, "rank": "1"}
    of_alert = {"alertname": "JobLosing", "alertstate": "firing", "phase": "backward"}
    excess = {"forward": forward, "backward": 1}
    series = [
        samples(recorded.EXCESS, steady(each, LIFE), **rank, node="n1", pp="", phase=name)
        for name, each in excess.items()
    ]
    series += [samples(foreign.ALERTS, steady(1, LIFE), **rank, **of_alert)] * standing
    expression = phase_of_most_excess(SPEC.windows, recorded.EXCESS, *RANK_LABELS)
    labels = ", ".join(f'{name}="{each}"' for name, each in (rank | {"phase": phase}).items())
    check(tmp_path, "jobs", series, value(expression, "10m", f"{{{labels}}}", 1))
