"""Whole stories, played to a real Prometheus and a real Alertmanager: who is paged, for what.

The stories run at the same time, each in a cluster of its own. They are two minutes long, because
objectives are evaluated once a minute.
"""

from collections.abc import Iterator

import pytest

from . import stories
from .replay import Theatre, hurried_spec, playing

pytestmark = [pytest.mark.server, pytest.mark.release, pytest.mark.timeout(400)]
_SETTLED_SECONDS = 140


@pytest.fixture(scope="module", name="theatre")
def _theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    series = stories.every_story(hurried_spec())
    with playing(tmp_path_factory.mktemp("replay") / "stack", series) as theatre:
        yield theatre


def test_a_stall_is_one_page(theatre: Theatre) -> None:
    page = theatre.wait_for_page("stall", "j1")
    assert [alert["labels"]["alertname"] for alert in page["alerts"]] == ["JobNotProgressing"]
    assert list(theatre.pages("stall")) == ["j1"]


@pytest.mark.parametrize(
    ("cluster", "page_of", "cause"),
    [
        ("link", "JobNotProgressing", "TrainGpuDegraded (verdict) on n1, GPU 0 since"),
        ("cap", "JobLosing", "in the phase backward on n2"),
        ("gone", "JobNotProgressing", "First to stop: rank 0 on n1 in sync"),
    ],
)
def test_a_page_comes_beside_what_stands_and_names_it(
    theatre: Theatre, cluster: str, page_of: str, cause: str
) -> None:
    [alert] = theatre.wait_for_page(cluster, "j1")["alerts"]
    assert alert["labels"]["alertname"] == page_of
    assert any(cause in text for text in alert["annotations"].values())


def test_a_rank_that_is_late_in_turns_is_paged_once(theatre: Theatre) -> None:
    theatre.wait_until(_SETTLED_SECONDS)
    pages = theatre.pages("flapping")
    assert {name: len(notified) for name, notified in pages.items()} == {"j1": 1}


def test_a_storm_of_failures_is_one_page_of_the_objective(theatre: Theatre) -> None:
    theatre.wait_for_page("storm", "job_success")
    theatre.wait_until(_SETTLED_SECONDS)
    assert list(theatre.pages("storm")) == ["job_success"]


def test_a_loop_of_requeues_is_a_ticket_and_no_page(theatre: Theatre) -> None:
    theatre.wait_for_page("requeues", "TrainSLOBurn", "tickets")
    assert theatre.pages("requeues") == {}


def test_lost_telemetry_of_one_node_is_a_ticket_and_no_page(theatre: Theatre) -> None:
    theatre.wait_for_page("telemetry", "TrainAgentDown", "tickets")
    theatre.wait_until(_SETTLED_SECONDS)
    assert theatre.pages("telemetry") == {}


@pytest.mark.parametrize("cluster", ["ledger", "weekend", "clean"])
def test_a_restarted_ledger_a_quiet_weekend_and_a_clean_day_notify_nobody(
    theatre: Theatre, cluster: str
) -> None:
    theatre.wait_until(_SETTLED_SECONDS)
    assert theatre.query(f'count({{cluster="{cluster}"}})')
    assert theatre.pages(cluster) == {}
    assert theatre.pages(cluster, "tickets") == {}
    assert theatre.alerts(cluster) == []


def test_no_rule_fails_or_stores_a_nan(theatre: Theatre) -> None:
    theatre.wait_until(_SETTLED_SECONDS)
    assert theatre.failing_rules() == []
    recorded = theatre.query('{__name__=~".+:.+"}')
    assert recorded
    assert [each["metric"] for each in recorded if each["value"][1] == "NaN"] == []
