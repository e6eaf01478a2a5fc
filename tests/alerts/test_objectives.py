"""Objectives: the limits by hand, entries that cannot be meant, and what follows from an entry."""

from pathlib import Path

import pytest

from lockstep_alerts.entry import SpecError
from lockstep_alerts.model import Delivery
from lockstep_alerts.objectives.burn import PAGE, TICKET, Limit
from lockstep_alerts.objectives.symptoms import BUDGET_ALERT
from lockstep_alerts.routing import alertmanager_config
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

from .test_spec import GOOD, written

SPEC = GOOD.replace("page: TrainSLOBurn\n", "page: TrainBurn\n    ticket: TrainSlow\n")


@pytest.mark.parametrize(
    ("limit", "jobs_a_week", "least"),
    [
        # By hand, at 95 %: 2.5 bad of 50 a week; 0.089 in 6 h, 0.357 in 24 h, 2.5 in 7 d.
        (PAGE[0], 50, 3),  # 0.089 + 3 * 0.299 + 1.5 = 2.49
        (PAGE[1], 50, 4),  # 0.357 + 3 * 0.598 + 1.5 = 3.65
        (TICKET[2], 50, 7),  # 2.5 + 2 * 1.58 + 1 = 6.66
        # 500 bad of 10,000 a week, 17.9 in 6 h: chance explains 32, the burn rate of 5.6 is 100.
        (PAGE[0], 10_000, 101),
    ],
)
def test_the_fewest_bad_events_that_page(limit: Limit, jobs_a_week: int, least: int) -> None:
    assert limit.least_bad(0.05, 4 * jobs_a_week) == least


def test_a_burn_rate_that_no_share_of_failures_reaches_is_lowered() -> None:
    # At 85 % the largest burn rate there is is 6.7: 5.6 would need 84 % of all jobs to fail.
    assert PAGE[0].feasible_burn_rate(0.15) == pytest.approx(0.8 / 0.15)
    assert PAGE[0].feasible_burn_rate(0.05) == 5.6


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.95", "1", r"objectives\[0\]: good_ratio 1: must be above 0.5 and at most 0.999"),
        ("0.95", "95 %", r"good_ratio '95 %': write a number"),
        ("slo: job_success", "slo: job_succes", r"slo 'job_succes': must be one of job_success,"),
        ("slo: job_success", "slo: goodput", r"slo 'goodput': must be one of job_success,"),
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
    entry = SPEC.partition("objectives:\n")[2].partition("symptoms:")[0]
    twice = entry + entry.replace("TrainBurn", "TrainOther").replace("TrainSlow", "TrainThird")
    with pytest.raises(SpecError, match="objective 'job_success': is listed twice"):
        read_spec(written(tmp_path, SPEC.replace(entry, twice)))


def test_an_entry_becomes_a_page_a_ticket_and_a_part_of_the_budget(tmp_path: Path) -> None:
    alerts = read_spec(written(tmp_path, SPEC)).objective_symptoms
    assert {each.alert: each.severity for each in alerts} == {
        "TrainBurn": "critical",
        "TrainSlow": "warning",
        BUDGET_ALERT: "warning",
    }


def test_the_page_of_an_objective_inhibits_its_ticket() -> None:
    rules = alertmanager_config(Delivery())["inhibit_rules"]
    assert isinstance(rules, list)
    assert ["cluster", "slo"] in [rule["equal"] for rule in rules]


def test_every_shipped_objective_is_in_the_budget() -> None:
    spec = read_spec(spec_path())
    [budget] = [each for each in spec.objective_symptoms if each.alert == BUDGET_ALERT]
    expression = budget.condition.expression(spec.windows)
    assert all(f'slo="{each.slo}"' in expression for each in spec.objectives)
