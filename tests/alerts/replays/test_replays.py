"""Whole stories, played to a real Prometheus and a real Alertmanager: who is paged, for what.

The stories run at the same time, each in a cluster of its own. They are two minutes long, because
objectives are evaluated once a minute.
"""

from collections.abc import Iterator

import pytest

from . import stories
from .replay import Theatre, playing

pytestmark = [pytest.mark.server, pytest.mark.release, pytest.mark.timeout(400)]
_SETTLED_SECONDS = 140


@pytest.fixture(scope="module", name="theatre")
def _theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    folder = tmp_path_factory.mktemp("replay") / "stack"
    with playing(folder, stories.every_story()) as theatre:
        yield theatre


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
    assert list(theatre.pages(cluster)) == ["j1"]
    assert alert["labels"]["alertname"] == page_of
    assert any(cause in text for text in alert["annotations"].values())


def test_no_rule_fails_or_stores_a_nan(theatre: Theatre) -> None:
    theatre.wait_until(_SETTLED_SECONDS)
    assert theatre.failing_rules() == []
    recorded = theatre.query('{__name__=~".+:.+"}')
    assert recorded
    assert [each["metric"] for each in recorded if each["value"][1] == "NaN"] == []
