"""Five pages about lost work, at most forty alerts, and nothing that keeps a page quiet."""

import yaml

from lockstep_alerts.output import alert_rule
from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.routing import alertmanager_config
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

SPEC = read_spec(spec_path())
PAGES = {"JobNotProgressing", "JobLosing", "WorkAtRisk", "ClusterLosing", "Blind"}
MOST_ALERTS = 40


def test_the_pages_are_the_five_about_lost_work() -> None:
    assert {each.name for each in SPEC.alerts if each.is_page} == PAGES


def test_the_list_is_short() -> None:
    assert len({each.name for each in SPEC.alerts}) <= MOST_ALERTS


def test_nothing_keeps_an_alert_quiet() -> None:
    """Not even a page: Alertmanager inhibits by what is silenced or muted too."""
    assert "inhibit_rules" not in alertmanager_config(Delivery())


def test_owners_are_never_pages() -> None:
    assert not [each.name for each in SPEC.alerts if each.route and each.is_page]


def test_pages_are_grouped_by_the_loss_and_carry_its_causes() -> None:
    config = yaml.safe_dump(alertmanager_config(Delivery()))
    assert "incident" in config
    for page in filter(lambda each: each.is_page, SPEC.alerts):
        rule = yaml.safe_load(yaml.safe_dump(alert_rule(page, SPEC.windows, Delivery())))
        assert rule["labels"]["incident"], page.name
        assert "ALERTS_FOR_STATE" in rule["annotations"]["causes"], page.name


def test_causes_have_different_weights_in_the_order_of_the_file() -> None:
    weights = [each.weight for each in SPEC.condition_alerts if each.weight]
    assert weights == sorted(set(weights))
