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


def test_one_fabric_failure_across_four_nodes_and_six_jobs_is_one_page_that_names_the_jobs(
    theatre: Theatre,
) -> None:
    page = theatre.wait_for_page("fabric", "TrainFabricDegraded")
    [alert] = page["alerts"]
    assert alert["annotations"]["summary"] == "Fabric of cluster fabric is degraded"
    # Each of the six has a rank on one of any three of the nodes.
    assert "Jobs: j1, j2, j3, j4, j5, j6." in alert["annotations"]["description"]
    theatre.wait_until_inhibited("fabric", {"TrainStragglerNode": 6, "TrainPortFault": 12})
    theatre.wait_until_inhibited("fabric", {"TrainJobStalled": 6})
    theatre.wait_until(_SETTLED_SECONDS)
    assert list(theatre.pages("fabric")) == ["TrainFabricDegraded"]
    assert theatre.pages("fabric", "tickets") == {}


def test_one_bad_gpu_under_one_job_is_one_page_that_names_job_node_and_gpu(
    theatre: Theatre,
) -> None:
    page = theatre.wait_for_page("gpu", "j1")
    [alert] = page["alerts"]
    assert alert["labels"]["alertname"] == "TrainJobNodeFault"
    assert alert["annotations"]["summary"] == "A fault on node n2 hits job j1"
    assert "GPU 3: lost" in alert["annotations"]["description"]
    theatre.wait_until(_SETTLED_SECONDS)
    assert "TrainJobStalled" in theatre.inhibited("gpu")
    assert list(theatre.pages("gpu")) == ["j1"]
    assert len(theatre.pages("gpu")["j1"]) == 1
    assert theatre.pages("gpu", "tickets") == {}


def test_one_node_that_takes_five_jobs_down_is_one_page_that_names_node_and_jobs(
    theatre: Theatre,
) -> None:
    page = theatre.wait_for_page("node", "TrainNodeFault")
    [alert] = page["alerts"]
    assert alert["annotations"]["summary"] == "Node n1 fails under 5 jobs"
    for job_id in ("j1", "j2", "j3", "j4", "j5"):
        assert job_id in alert["annotations"]["description"]
    theatre.wait_until(_SETTLED_SECONDS)
    theatre.wait_until_inhibited("node", {"TrainJobNodeFault": 5, "TrainJobStalled": 5})
    assert list(theatre.pages("node")) == ["TrainNodeFault"]


def test_a_node_that_is_gone_is_one_page_of_its_job(theatre: Theatre) -> None:
    page = theatre.wait_for_page("gone", "j1")
    assert [alert["labels"]["alertname"] for alert in page["alerts"]] == ["TrainJobNodeLost"]
    theatre.wait_until(_SETTLED_SECONDS)
    assert list(theatre.pages("gone")) == ["j1"]
    assert "TrainJobStalled" in theatre.inhibited("gone")


def test_a_stall_is_one_page(theatre: Theatre) -> None:
    page = theatre.wait_for_page("stall", "j1")
    assert [alert["labels"]["alertname"] for alert in page["alerts"]] == ["TrainJobStalled"]
    assert list(theatre.pages("stall")) == ["j1"]


def test_two_faults_of_one_job_are_one_page(theatre: Theatre) -> None:
    theatre.wait_until(_SETTLED_SECONDS)
    pages = theatre.pages("wrongs")
    assert list(pages) == ["j1"]
    alerts = {alert["labels"]["alertname"] for page in pages["j1"] for alert in page["alerts"]}
    assert alerts == {"TrainLossNotFinite", "TrainStragglerRank"}
    assert theatre.inhibited("wrongs") == {"TrainStragglerRankSlight"}


def test_a_rank_that_is_late_in_turns_is_paged_once(theatre: Theatre) -> None:
    theatre.wait_until(_SETTLED_SECONDS)
    pages = theatre.pages("flapping")
    assert {name: len(notified) for name, notified in pages.items()} == {"j1": 1}


def test_a_storm_of_failures_is_one_page_of_the_objective(theatre: Theatre) -> None:
    theatre.wait_for_page("storm", "TrainSLOJobSuccessBurn")
    theatre.wait_until(_SETTLED_SECONDS)
    assert list(theatre.pages("storm")) == ["TrainSLOJobSuccessBurn"]
    assert theatre.pages("storm", "tickets") == {}


def test_a_loop_of_requeues_is_a_ticket_and_no_page(theatre: Theatre) -> None:
    theatre.wait_for_page("requeues", "TrainRequeueRateHigh", "tickets")
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
