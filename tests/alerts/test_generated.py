from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from writers.spec_files import render_limits

from lockstep_alerts.alert import AREAS, JOBS, Alert, Area
from lockstep_alerts.command import alerts
from lockstep_alerts.conditions import CONDITIONS
from lockstep_alerts.output import ROUTES_FILE, UNKNOWN, alert_rule, render, write_files
from lockstep_alerts.reading.model import Delivery, Duration
from lockstep_alerts.shipped import runbooks_path, spec_path
from lockstep_alerts.spec import Spec, read_spec
from lockstep_catalogue import limits, recorded, training
from lockstep_catalogue.windows import ScrapeWindows

from .cases.promtool import cases_of, check_rules, document_of
from .cases.synthetic import (
    HEALTHY,
    JOB,
    OWNER,
    TWO_NODES,
    Regime,
    Samples,
    Stretch,
    growing,
    on_many_gpus,
    one_rank_late,
    ranks_late,
    samples,
    steady,
    training_job,
)

RULES_FILE = JOBS.rules_file
SPEC = read_spec(spec_path())
CONDITION_ALERTS = SPEC.condition_alerts
ALERTS = SPEC.alerts
FAST_SPEC = read_spec(spec_path(), Duration("5s"))
NAMED_ALERTS = {alert.name: alert for alert in ALERTS}
SECTIONS = {
    False: ["Meaning", "Impact", "Diagnosis"],
    True: ["What is lost", "Three commands", "Meaning"],
}
LAST_SECTIONS = ["Mitigation", "False positives", "Time box", "Escalation", "Dashboards"]
# Labels of an alert on a job that no ledger knows.
OWNED = {**JOB, "project": UNKNOWN, "queue": UNKNOWN, "class": UNKNOWN}
PAGE = {"severity": "critical", "incident": "j1"}
GENERATED = Path(__file__).parents[2] / "alerts" / "generated"


def promtool(folder: Path, series: list[Samples], test: Mapping[str, object]) -> None:
    """Runs a test of promtool on the shipped rules, with these series as input."""
    write_files(folder, {RULES_FILE: render(FAST_SPEC, Delivery())[RULES_FILE]})
    inputs = [{"series": each.series, "values": each.course.promtool(5)} for each in series]
    document = {
        "rule_files": [RULES_FILE],
        "evaluation_interval": "5s",
        "tests": [{"interval": "5s", "input_series": inputs, **test}],
    }
    check_rules(folder, document)


def firing(alert: str) -> str:
    return f'ALERTS{{alertname="{alert}", alertstate="firing"}}'


def find_faults(alert: Alert) -> Iterator[str]:
    fires = {case.fires is not None for case in cases_of(alert, SPEC.windows)}
    if fires != {True, False}:
        yield f"{alert.name}: no case that fires, or none that is silent"
    sections = SECTIONS[alert.is_page] + LAST_SECTIONS
    runbook = (runbooks_path() / f"{alert.name}.md").read_text(encoding="utf-8")
    if [line[3:] for line in runbook.splitlines() if line.startswith("## ")] != sections:
        yield f"{alert.name}: sections of its runbook"


def test_every_alert_has_a_runbook_a_firing_case_and_a_silent_case() -> None:
    assert [fault for alert in ALERTS for fault in find_faults(alert)] == []


def test_every_runbook_belongs_to_an_alert() -> None:
    assert {path.stem for path in runbooks_path().glob("*.md")} == set(NAMED_ALERTS)


def test_the_committed_files_are_generated_from_the_spec() -> None:
    outcome = CliRunner().invoke(alerts, ["generate", "--check", "--out", str(GENERATED)])
    assert outcome.exit_code == 0, outcome.output


def test_a_stale_file_is_named_and_not_written(tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(alerts, ["generate", "--out", str(tmp_path)]).exit_code == 0
    (tmp_path / RULES_FILE).write_text("old", encoding="utf-8")
    outcome = runner.invoke(alerts, ["generate", "--check", "--out", str(tmp_path)])
    assert outcome.exit_code == 1
    assert RULES_FILE in outcome.output
    assert ROUTES_FILE not in outcome.output
    assert (tmp_path / RULES_FILE).read_text(encoding="utf-8") == "old"


def test_links_that_lead_nowhere_from_a_mail_are_named_with_their_settings(tmp_path: Path) -> None:
    command = ["generate", "--out", str(tmp_path), "--runbook-base", "https://books/"]
    some = CliRunner().invoke(alerts, command)
    assert "links in pages are relative; give --dashboard-base an address" in some.stderr
    none = CliRunner().invoke(alerts, [*command, "--dashboard-base", "https://boards"])
    assert none.stderr == ""


def test_links_begin_with_the_bases() -> None:
    delivery = Delivery(runbook_base="https://r/", dashboard_base="https://g")
    notes = alert_rule(CONDITION_ALERTS[0], SPEC.windows, delivery)["annotations"]
    assert isinstance(notes, dict)
    assert notes["runbook_url"] == "https://r/JobNotProgressing.md"
    assert notes["dashboard_url"].startswith(
        "https://g/d/lockstep-job?from=now-1h&to=now&var-cluster="
    )


def test_every_kind_of_condition_is_in_use() -> None:
    used = {type(part) for alert in CONDITION_ALERTS for part in alert.condition.parts()}
    assert used == set(CONDITIONS.values())


@pytest.mark.promtool
def test_two_phases_that_grow_alike_make_one_alert(tmp_path: Path) -> None:
    # Not to the last bit: of two equal values topk takes either, at each evaluation anew.
    regime = one_rank_late(60, 2, {"forward": 0.05, "backward": 0.051})
    count = {"expr": f"count({firing('JobLosing')})", "eval_time": "50s"}
    promtool(
        tmp_path,
        [*training_job(regime), *on_many_gpus(60)],
        {"promql_expr_test": [{**count, "exp_samples": [{"labels": "{}", "value": 1}]}]},
    )


@pytest.mark.promtool
def test_a_rank_that_moved_is_named_on_its_new_node(tmp_path: Path) -> None:
    elsewhere = {"instance": "n2:9400", **JOB, "node": "n2", "rank": "2"}
    moved = [
        samples(training.RANK_INFO, steady(1, 60), **elsewhere, clock="host"),
        samples(training.LAST_PROGRESS, growing(Stretch(60, 1), start=7), **elsewhere),
    ]
    series = training_job(one_rank_late(60, 2, {"data": 0.1})) + moved + on_many_gpus(60)
    nodes = {"expr": f"count by (node) ({firing('JobLosing')})", "eval_time": "50s"}
    expected = [{"labels": '{node="n2"}', "value": 1}]
    promtool(tmp_path, series, {"promql_expr_test": [{**nodes, "exp_samples": expected}]})


@pytest.mark.promtool
def test_of_two_ranks_the_late_one_costs_its_whole_lateness(tmp_path: Path) -> None:
    late = {**HEALTHY, "data": HEALTHY["data"] + 0.1}
    waiting = {**HEALTHY, "sync": HEALTHY["sync"] + 0.1}
    series = training_job(Regime(60, (late, waiting)))
    rank = 'cluster="c1", job_id="j1", node="n1", rank="0"'
    ratio = {
        "expr": f"round({recorded.LATENESS_RATIO.name}{{{rank}}}, 0.001)",
        "eval_time": "50s",
        "exp_samples": [{"labels": f"{{{rank}}}", "value": 0.5}],
    }
    promtool(tmp_path, series, {"promql_expr_test": [ratio]})


@pytest.mark.promtool
def test_templates_of_summary_and_description_are_filled_in(tmp_path: Path) -> None:
    by_template = {
        "summary": "Job j1 loses time to rank 2",
        "description": "500 GPU-hours are lost each hour, most of them in the phase data on n1.",
        "causes": "TrainStraggler (rank) on n1 since 1970-01-01 00:00:05 +0000 UTC.",
        "runbook_url": "runbooks/JobLosing.md",
        "dashboard_url": "/d/lockstep-job?from=now-1h&to=now&var-cluster=c1&var-job_id=j1#progress",
        "notified_within": "55s",
        "gpus": "1000",
    }
    labels = {**JOB, **OWNER, **PAGE, "cause": "rank", "rank": "2", "phase": "data", "node": "n1"}
    alert = {
        "alertname": "JobLosing",
        "eval_time": "50s",
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": by_template}],
    }
    series = training_job(one_rank_late(60, 2, {"data": 0.1})) + on_many_gpus(60)
    promtool(tmp_path, series, {"alert_rule_test": [alert]})


STALL_SENTENCES = {
    "a rank hangs in its backward": "The others wait for rank 2 on n2 in backward"
    " (outside of waits).",
    "a rank hangs in a checkpoint": "The others wait for rank 2 on n2 in checkpoint"
    " (outside of waits).",
    "all wait, and none pauses": "No rank stands apart. First to stop: rank 0 on n1 in sync,"
    " rank 2 on n2 in sync.",
}


@pytest.mark.promtool
@pytest.mark.parametrize("case_name", STALL_SENTENCES)
def test_a_stalled_job_names_its_missing_rank_node_and_phase(
    tmp_path: Path, case_name: str
) -> None:
    alert = NAMED_ALERTS["JobNotProgressing"]
    cases = {case.name: case for case in cases_of(alert, FAST_SPEC.windows)}
    case = cases[case_name]
    stands = 'alertname="TrainGpuDegraded", cause="verdict", cluster="c1", node="n1", gpu="0"'
    fault = Samples(f'ALERTS_FOR_STATE{{{stands}, weight="1"}}', steady(5, 3600))
    annotations = {
        "summary": "Job j1 makes no progress",
        "description": f"4 GPU-hours are lost each hour. {STALL_SENTENCES[case_name]}",
        "causes": "TrainGpuDegraded (verdict) on n1, GPU 0 since 1970-01-01 00:00:05 +0000 UTC.",
        "runbook_url": "runbooks/JobNotProgressing.md",
        "dashboard_url": "/d/lockstep-job?from=now-1h&to=now&var-cluster=c1&var-job_id=j1#progress",
        "notified_within": "150s",
        "gpus": "",
    }
    expected = {
        "alertname": alert.name,
        "eval_time": f"{case.at_seconds}s",
        "exp_alerts": [{"exp_labels": {**OWNED, **PAGE}, "exp_annotations": annotations}],
    }
    promtool(tmp_path, [*case.series, fault], {"alert_rule_test": [expected]})


@pytest.mark.promtool
def test_a_slow_node_makes_one_page_whatever_its_ranks_differ_by(tmp_path: Path) -> None:
    # One rank beyond the limit of a page, the other by half of it: both are the node's.
    late = {2: {"backward": 0.05}, 3: {"backward": 0.03}}
    series = training_job(ranks_late(60, late), places=TWO_NODES) + on_many_gpus(60)
    alerts_by_name = {
        "expr": 'count by (alertname, node) (ALERTS{alertstate="firing"})',
        "eval_time": "50s",
        "exp_samples": [{"labels": '{alertname="JobLosing", node="n2"}', "value": 1}],
    }
    promtool(tmp_path, series, {"promql_expr_test": [alerts_by_name]})


INTERVALS = (5, 10, 15, 30, 60)
# From the fault to the notification: the figures that docs promise; a group waits longer than an
# evaluation, so that a cause is there before its symptom is told.
DEADLINES = {
    "JobNotProgressing": (150, 165, 180, 225, 315),
    "JobLosing": (55, 105, 155, 305, 605),
    "TrainStraggler": (289, 319, 350, 455, 665),
    "TrainCheckpointInvalid": (29, 39, 50, 95, 185),
    "TrainCheckpointFailed": (29, 39, 50, 95, 185),
    "TrainOutOfMemory": (29, 39, 50, 95, 185),
    "TrainReplicasDiffer": (34, 49, 65, 125, 245),
}


def spec_at(seconds: int) -> Spec:
    return read_spec(spec_path(), Duration(f"{seconds}s"))


def test_the_catalogue_holds_what_the_spec_declares() -> None:
    spec = read_spec(spec_path())
    assert spec.windows == limits.DECLARED
    assert Path(limits.__file__).read_text(encoding="utf-8") == render_limits(spec)


@pytest.mark.parametrize("seconds", INTERVALS)
def test_deadlines_follow_from_the_interval(seconds: int) -> None:
    spec = spec_at(seconds)
    by_alert = {each.name: each.deadline_seconds(spec.windows) for each in spec.alerts}
    position = INTERVALS.index(seconds)
    for alert, deadlines in DEADLINES.items():
        assert by_alert[alert] == deadlines[position], alert


@pytest.mark.promtool
@pytest.mark.timeout(240)
@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.name)
@pytest.mark.parametrize(
    "seconds", [15, *(pytest.param(each, marks=pytest.mark.release) for each in (5, 10, 30, 60))]
)
def test_every_alert_fires_by_its_deadline_and_is_silent_in_health(
    area: Area, seconds: int, tmp_path: Path
) -> None:
    spec = spec_at(seconds)
    write_files(tmp_path, render(spec, Delivery()))
    check_rules(tmp_path, *(document_of(area, spec, (alert,)) for alert in spec.alerts_of(area)))


def test_windows_hold_four_scrapes_and_never_less_than_the_condition_needs() -> None:
    for seconds in INTERVALS:
        windows = ScrapeWindows(seconds)
        assert windows.live_seconds >= 4 * seconds
        assert windows.evaluation_seconds <= seconds
    assert [ScrapeWindows(s).cover(60) for s in INTERVALS] == ["1m", "1m", "1m", "2m", "4m"]
