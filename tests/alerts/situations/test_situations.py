"""Every situation of alerts/situations; a twentieth of the brief ones at a minute in each run."""

from typing import Any

import pytest

from lockstep_catalogue import METRICS

from .expand import Paging, run, shipped, situations
from .fleet import build

INTERVALS = (5, 15, 60)
SITUATIONS = situations()
_BRIEF_SCRAPE = 60
_LONG = ("24h", "16h", "14h", "9h", "6h", "5h", "3h", "4h")


def _is_long(situation: dict[str, Any]) -> bool:
    return any(str(entry["time"]).endswith(_LONG) for entry in situation["at"])


def _params() -> list[Any]:
    """Each situation at each interval at which it holds; a sample of them in each run."""
    pairs = [(each, s) for s in INTERVALS for each in SITUATIONS
             if s in each.get("scrape_seconds", INTERVALS)]  # fmt: skip
    brief = [pair for pair in pairs if pair[1] == _BRIEF_SCRAPE and not _is_long(pair[0])][::20]
    return [
        pytest.param(
            *pair,
            id=f"{pair[0]['name']}-{pair[1]}",
            marks=[] if pair in brief else [pytest.mark.release],
        )
        for pair in pairs
    ]


@pytest.fixture(scope="module")
def paging(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Paging]:
    return {scrape: shipped(scrape, tmp_path_factory.mktemp("rules")) for scrape in INTERVALS}


@pytest.mark.server
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("situation", "scrape"), _params())
def test_on_call_is_told_what_it_expects(
    situation: dict[str, Any], scrape: int, paging: dict[int, Paging]
) -> None:
    assert not run(situation, scrape, paging[scrape])


def test_half_of_the_situations_are_healthy() -> None:
    assert len({situation["name"] for situation in SITUATIONS}) == len(SITUATIONS)
    assert sum(situation["day"] == "healthy" for situation in SITUATIONS) >= len(SITUATIONS) / 2
    assert {situation["day"] for situation in SITUATIONS} == {"healthy", "bad"}


def test_every_situation_builds_of_series_of_the_catalogue_with_their_labels() -> None:
    declared = {name: metric for metric in METRICS for name in metric.sample_names}
    target = {"__name__", "job", "instance", "cluster", "node", "le"}
    for situation in SITUATIONS:
        for series in build(situation, 60, 60):
            name = series.labels["__name__"]
            if name.startswith("lockstep_"):
                labels = {label.name for label in declared[name].labels}
                assert labels <= series.labels.keys(), (situation["name"], name)
                assert series.labels.keys() - target <= labels, (situation["name"], name)
