"""Objectives: the limits by hand, entries that cannot be meant, and what follows from an entry."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep_alerts.alert import OBJECTIVES
from lockstep_alerts.objectives.objective import Limit, feasible_burn_rate
from lockstep_alerts.output import declared_by_spec, write_files
from lockstep_alerts.reading.entry import SpecError
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import BUDGET_ALERT, Spec, read_spec
from lockstep_catalogue.ledger import CHECKPOINTS, SLO
from lockstep_catalogue.recorded import GOAL
from lockstep_catalogue.training import CHECKPOINT_SECONDS

from ..cases.promtool import cases_file, rules_and_tests
from ..test_spec import GOOD, written

SHIPPED = read_spec(spec_path())
PAGE, TICKET = SHIPPED.objective_windows.event_page, SHIPPED.objective_windows.event_ticket
SPEC = GOOD.replace("page: TrainSLOBurn\n", "page: TrainBurn\n    ticket: TrainSlow\n")


@pytest.mark.parametrize(
    ("limit", "jobs_a_week", "least"),
    [
        # By hand, at 95 % and two failures an incident; 50 a week are 7.1 in 24 h, 50 in 7 d.
        (PAGE[0], 50, 5),  # all five fail: 0.25 + 3.5 * sqrt(2 * 0.25) + 2 = 4.72
        (PAGE[1], 50, 6),  # 0.357 + 3.5 * sqrt(2 * 0.357) + 2 = 5.31
        (TICKET[2], 50, 9),  # 2.5 + 2 * sqrt(2 * 2.5) + 2 = 8.97
        # 500 bad of 10,000 a week, 17.9 in 6 h: chance explains 32, the burn rate of 5.6 is 100.
        (PAGE[0], 10_000, 101),
    ],
)
def test_the_fewest_bad_events_that_page(limit: Limit, jobs_a_week: int, least: int) -> None:
    assert limit.least_bad(0.05, limit.events(4 * jobs_a_week)) == least


def test_a_burn_rate_that_no_share_of_failures_reaches_is_refused_with_one_that_works(
    tmp_path: Path,
) -> None:
    # At 85 % the largest burn rate there is is 6.7: 5.6 would need 84 % of all jobs to fail.
    assert feasible_burn_rate(0.15) == pytest.approx(0.8 / 0.15)
    path = written(tmp_path, SPEC.replace("0.95", "0.85"))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "0.85" in text)
    sentence = rf"slos\.yaml:{line}: .*at most 6.67 times.*burn_rates: {{6h: 5.3}} or less"
    with pytest.raises(SpecError, match=sentence):
        read_spec(path)
    works = SPEC.replace("0.95", "0.85\n    burn_rates: {6h: 5.3}")
    assert read_spec(written(tmp_path, works)).objectives[0].page_limits[0].burn_rate == 5.3


@pytest.mark.parametrize(
    ("good_ratio", "rates"),
    [
        # The table of the reference: below which share of good time each window fires.
        (0.99, {"1h": 0.866, "6h": 0.944, "24h": 0.972, "3d": 0.99}),
        (0.95, {"1h": 0.33, "6h": 0.72, "24h": 0.86, "3d": 0.95}),
    ],
)
def test_gpu_second_limits_are_the_tables(good_ratio: float, rates: dict[str, float]) -> None:
    windows = SHIPPED.objective_windows
    for limit in (*windows.gpu_second_page, *windows.gpu_second_ticket):
        assert 1 - limit.bad_share(1 - good_ratio) == pytest.approx(rates[limit.window], abs=1e-9)
    by_window = {limit.window: limit.budget_share() for limit in windows.gpu_second_page}
    assert by_window == pytest.approx({"1h": 0.02, "6h": 0.05}, abs=1e-3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.95", "1", r"objectives\[0\]: good_ratio 1: must be above 0.5 and at most 0.999"),
        ("0.95", "95 %", r"good_ratio '95 %': write a number"),
        ("slo: job_success", "slo: job_succes", r"slo 'job_succes': must be one of job_success,"),
        ("slo: job_success", "slo: goodput", r"objectives\[0\]: min_gpus is missing; add it"),
        ("0.95", "0.95\n    min_ratio: 0.9", r"min_ratio 0.9: unknown key"),
        ("0.95", "0.95\n    good_ratio: 0.9", r"good_ratio is already in line \d+"),
        ("0.95", "0.95\n    job_classes: {large: 2}", r"job_classes: large 2: must be above"),
        ("    page: TrainBurn\n    ticket: TrainSlow\n", "", r"ticket None: name an alert"),
        ("ticket: TrainSlow", "ticket: TrainBurn", r"alert 'TrainBurn': is listed twice"),
        ("ticket: TrainSlow", "tickets: TrainSlow", r"tickets 'TrainSlow': unknown key"),
        ("measure: M1", "measure: F1", r"measure 'F1': must match"),
    ],
)
def test_an_objective_that_cannot_be_meant_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        read_spec(written(tmp_path, SPEC.replace(old, new, 1)))


def test_two_objectives_of_one_name_are_refused(tmp_path: Path) -> None:
    entry = SPEC.partition("objectives:\n")[2].partition("alerts:")[0]
    twice = entry + entry.replace("TrainBurn", "TrainOther").replace("TrainSlow", "TrainThird")
    with pytest.raises(
        SpecError, match=r"slos\.yaml:\d+: .*slo 'job_success': is listed twice, first in .*slos"
    ):
        read_spec(written(tmp_path, SPEC.replace(entry, twice)))


def test_an_entry_becomes_a_page_a_ticket_and_a_part_of_the_budget(tmp_path: Path) -> None:
    alerts = read_spec(written(tmp_path, SPEC)).objective_alerts
    assert {each.name: each.severity for each in alerts} == {
        "TrainBurn": "critical",
        "TrainSlow": "warning",
        BUDGET_ALERT: "warning",
    }


def test_every_objective_of_the_catalogue_is_shipped_and_in_the_budget() -> None:
    assert sorted(each.slo for each in SHIPPED.objectives) == sorted(SLO.values)
    goals = declared_by_spec(SHIPPED.objectives, SHIPPED.windows)[GOAL]
    assert all(f'"{each.slo}"' in goals for each in SHIPPED.objectives)


def test_a_class_of_jobs_has_limits_of_its_own(tmp_path: Path) -> None:
    text = SPEC.replace("0.95", "0.95\n    job_classes: {large: 0.9}")
    spec = read_spec(written(tmp_path, text))
    page = spec.objective_alerts[0].condition.expression(spec.windows)
    of_all, of_class = page.split('job_class="large"', 1)
    assert 'job_class=""' in of_all
    # Of the events that ended in the window.
    assert "(0.05 *" in of_all
    assert "(0.1 *" in of_class


def test_a_retention_that_cannot_hold_the_slices_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"slos\.yaml:17: windows: retention '5d': slices .*7d"):
        read_spec(written(tmp_path, SPEC.replace("retention: 15d", "retention: 5d")))


ENTRY = """\
  - slo: shards
    measure: M7
    good_ratio: 0.95
    bad: bad checkpoints
    counter: {counter}
    good: {good}
    period: 7d
    ticket: TrainShardsBad
"""
OUTCOME_COUNTER = (CHECKPOINTS.name, "{outcome: ok}")
LENGTH_COUNTER = (CHECKPOINT_SECONDS.name, '{le: "60", writing: blocking}')
AT = "alerts:\n"


def with_entry(folder: Path, counter: str, good: str, change: tuple[str, str] = ("", "")) -> Path:
    entry = ENTRY.replace("{counter}", counter).replace("{good}", good).replace(*change)
    return written(folder, GOOD.replace(AT, entry + AT))


def run_cases(folder: Path, spec: Spec) -> subprocess.CompletedProcess[str]:
    alerts = [each for each in spec.objective_alerts if each.name == "TrainShardsBad"]
    write_files(folder, rules_and_tests(replace(spec, objective_alerts=tuple(alerts))))
    command = ["promtool", "test", "rules", str(folder / cases_file(OBJECTIVES))]
    return subprocess.run(command, capture_output=True, check=False, text=True)


@pytest.mark.promtool
@pytest.mark.parametrize("counted", [OUTCOME_COUNTER, LENGTH_COUNTER], ids=["counter", "histogram"])
def test_bad_increments_fire_and_good_ones_do_not(tmp_path: Path, counted: tuple[str, str]) -> None:
    spec = read_spec(with_entry(tmp_path, *counted))
    done = run_cases(tmp_path, spec)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = (tmp_path / cases_file(OBJECTIVES)).read_text()
    assert "fires: some are bad" in tests
    assert "is silent: all are good" in tests


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            ("checkpoints_total", "checkpoint_total"),
            f"no such counter; did you mean {CHECKPOINTS.name}",
        ),
        (("outcome: ok", "outcom: ok"), r"has no such label; did you mean outcome\?"),
        (("outcome: ok", "outcome: fine"), "outcome='fine' is none of ok, failed, invalid"),
        (
            ("period: 7d", "period: 28d"),
            r"period '28d': Prometheus keeps samples for 15d; write 7d",
        ),
        (("slo: shards", "slo: goodput"), "is counted by the ledger or in slices"),
        (("period: 7d", "period: 1d"), r"period '1d': must be one of 28d, 7d"),
    ],
)
def test_what_cannot_be_counted_is_refused_with_its_line(
    tmp_path: Path, change: tuple[str, str], sentence: str
) -> None:
    path = with_entry(tmp_path, *OUTCOME_COUNTER, change)
    with pytest.raises(SpecError, match=sentence) as refused:
        read_spec(path)
    line = int(str(refused.value).split(":")[1])
    assert change[1].split(":")[0].strip() in path.read_text().splitlines()[line - 1] or (
        "counter" in path.read_text().splitlines()[line - 1]
    )


def test_a_bound_that_is_no_edge_is_refused_with_the_edges(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"le '50': is not an edge of a bucket; edges are 0.1, 0.5"):
        read_spec(with_entry(tmp_path, LENGTH_COUNTER[0], '{le: "50"}'))
