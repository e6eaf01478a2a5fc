"""The second set of situations, with the project's rules and routes, on a real Prometheus.

A sample in each run, all of them in the release one. Those that do not come right yet stand in
not_met.yaml with what happens instead; one that has come right is taken off it by
`PYTHONPATH=tests python -m alerts.situations_second`.
"""

from pathlib import Path

import pytest

from alerts.situations import expand
from alerts.situations.expand import shipped
from alerts.situations.fleet import build

from .judge import SCRAPE, Case, firing_of, heard, judged
from .not_met import CASES, NOT_MET

SAMPLE = [case for case in CASES[::20] if case.name not in NOT_MET]


@pytest.fixture(scope="module")
def paging(tmp_path_factory: pytest.TempPathFactory) -> expand.Paging:
    return shipped(SCRAPE, tmp_path_factory.mktemp("rules"))


def check(case: Case, paging: expand.Paging) -> None:
    runs = heard(case, firing_of(case, paging), paging)
    found = judged(case, runs).sentences
    if case.name in NOT_MET:
        assert found, f"{case.name!r} has come right: take it off not_met.yaml"
    else:
        assert not found


@pytest.mark.server
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", SAMPLE, ids=lambda each: each.name)
def test_people_hear_what_they_should(case: Case, paging: expand.Paging) -> None:
    check(case, paging)


@pytest.mark.server
@pytest.mark.release
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES, ids=lambda each: each.name)
def test_every_situation(case: Case, paging: expand.Paging) -> None:
    check(case, paging)


@pytest.mark.server
@pytest.mark.promtool
@pytest.mark.timeout(300)
def test_the_ruler_finds_what_promtool_finds(paging: expand.Paging, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "a hang in the first hour of a Prometheus")
    hours = 1.0
    situation = case.world.situation(case.name, hours)
    _, firing = expand.run_promtool(situation, SCRAPE, paging, tmp_path)
    short = Case(case.name, case.world, hours)
    by_ruler = firing_of(short, paging)
    assert {each["alertname"] for alerts in firing.values() for each in alerts} >= {"TrainWatchdog"}
    # promtool evaluates where nothing was scraped.
    for second in (second for second in firing if second >= 20 * 60):
        assert sorted(map(sorted, map(dict.items, firing[second]))) == sorted(
            map(sorted, map(dict.items, by_ruler[second]))
        )


def test_half_of_them_are_ordinary_and_each_builds() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 120
    assert 0.4 < sum(case.is_ordinary for case in CASES) / len(CASES) < 0.6
    assert NOT_MET.keys() <= {case.name for case in CASES}
    for case in CASES:
        assert build(case.world.situation(case.name, case.hours), SCRAPE, 60)
