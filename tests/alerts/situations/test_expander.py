"""The expander, with real promtool and a few rules of its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lockstep_catalogue import METRICS

from .expand import Paging, end_of, run, situations
from .fleet import build, matchers
from .ordinary_weeks import import_lines, incidents, replay, week
from .timelines import STALE, Course, notation, seconds, segments

TOY = Path(__file__).with_name("toy.rules.yaml")
PAGING = Paging(rule_files=[TOY])
INTERVALS = (5, 15, 60)
DAY = 86400.0


def course(
    timeline: str, *bends: str, name: str = "x_total", scrape: float = 60, end: float = 600
) -> Any:
    found = Course(name, np.arange(0.0, end + 1, scrape), scrape)
    for number, text in enumerate((timeline, *bends)):
        for segment in segments(text, scrape, end):
            found.apply(segment, base=not number)
    return found.values()


def test_a_counter_goes_on_behind_an_absence() -> None:
    values = course("100 +1 every 60s", "2m-4m: absent")
    assert values[:6] == [100, 101, STALE, None, 104, 105]


def test_a_gap_of_prometheus_leaves_no_mark() -> None:
    assert course("7", "2m-4m: gap")[1:5] == [7, None, None, 7]


def test_a_held_counter_stands_and_then_goes_on_from_there() -> None:
    assert course("0 +2 every 60s", "2m-4m: held")[:6] == [0, 2, 2, 2, 4, 6]


def test_a_held_clock_stands() -> None:
    assert course("now", "2m-4m: held", name="y")[:6] == [0, 60, 60, 60, 240, 300]


def test_a_gauge_has_its_own_value_after_a_segment_and_a_counter_keeps_its_own() -> None:
    assert course("1", "1m-2m: 0", name="y")[:4] == [1, 0, 1, 1]
    assert course("3", "1m-2m: 4", name="y_total")[:4] == [3, 4, 4, 4]


def test_a_reset_counter_goes_on_as_before() -> None:
    assert course("50 +1 every 60s", "3m-: 0 again")[:6] == [50, 51, 52, 0, 1, 2]


def test_long_steps_are_stairs() -> None:
    assert course("0 +1 every 120s")[:6] == [0, 0, 1, 1, 2, 2]


def test_times_count_scrapes() -> None:
    assert seconds("10m+30s+2 scrapes", 15) == 660
    with pytest.raises(ValueError, match="no duration"):
        seconds("soon", 15)


def test_promtool_reads_runs() -> None:
    assert notation([1.0, 1.0, 1.0, STALE, None, None, 2.5]) == "1x2 stale _x2 2.5"


def test_every_situation_builds_and_half_of_them_are_healthy() -> None:
    found = situations()
    assert len(found) >= 120
    assert len({situation["name"] for situation in found}) == len(found)
    assert sum(situation["day"] == "healthy" for situation in found) >= len(found) / 2
    for situation in found:
        assert situation.keys() <= {
            "name",
            "why",
            "day",
            "part",
            "scrape_seconds",
            "needs",
            "fleet",
            "events",
            "series",
            "adds",
            "at",
            "subject",
        }, situation["name"]
        assert situation["day"] in {"healthy", "bad"}
        assert build(situation, 60, end_of(situation, 60))


def test_every_series_is_in_the_catalogue_with_its_labels() -> None:
    declared = {
        metric.name: {str(getattr(label, "name", label)) for label in metric.labels}
        for metric in METRICS
    }
    target = {"__name__", "job", "instance", "cluster", "node", "le"}
    for situation in situations():
        for series in build(situation, 60, 60):
            name = series.labels["__name__"]
            for ending in ("_bucket", "_sum", "_count"):
                if name not in declared and name.endswith(ending):
                    name = name.removesuffix(ending)
            if name.startswith("lockstep_"):
                assert name in declared, (situation["name"], name)
                surplus = series.labels.keys() - target - declared[name]
                assert not surplus, (situation["name"], name, surplus)
                assert declared[name] <= series.labels.keys(), (
                    situation["name"],
                    name,
                    declared[name],
                )


HANG: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("toy.situation.yaml").read_text(encoding="utf-8")
)


@pytest.mark.promtool
@pytest.mark.parametrize("scrape", INTERVALS)
def test_two_incidents_are_two_pages_with_their_objects(scrape: float, tmp_path: Path) -> None:
    right = [{"job_id": "A"}, {"job_id": "B"}]
    situation = HANG | {"at": [{"time": "0-5m", "silent": True}, {"time": "11m", "pages": right}]}
    assert run(situation, scrape, PAGING, tmp_path) == []
    wrong = HANG | {"at": [{"time": "11m", "pages": [{"job_id": "A"}]}]}
    assert "pages nobody expects: ['ToyNotFinite']" in "".join(run(wrong, scrape, PAGING, tmp_path))
    missing = HANG | {"at": [{"time": "0-4m", "pages": [{"job_id": "A"}]}]}
    assert "pages lack" in "".join(run(missing, scrape, PAGING, tmp_path))


@pytest.mark.promtool
def test_a_page_that_lists_jobs_is_read_from_its_annotations(tmp_path: Path) -> None:
    pages = [{"job_id": "A", "jobs": ["A"]}, {"job_id": "B", "jobs": ["B", "C"]}]
    found = run(HANG | {"at": [{"time": "11m", "pages": pages}]}, 15, PAGING, tmp_path)
    assert found == [
        "job A stands and job B has NaN [15 s, 11m]: the page does not name the jobs ['C']"
    ]


@pytest.mark.promtool
def test_inhibition_by_equal_labels_mutes_only_what_is_equal(tmp_path: Path) -> None:
    rule = {
        "source_matchers": ['alertname="ToyStalled"'],
        "target_matchers": ['alertname="ToyNotFinite"'],
        "equal": ["cluster", "job_id"],
    }
    expected = HANG | {"at": [{"time": "11m", "pages": [{"job_id": "A"}]}]}
    narrow = Paging(rule_files=[TOY], inhibit_rules=[rule])
    blind = Paging(rule_files=[TOY], inhibit_rules=[rule | {"equal": ["cluster"]}])
    assert run(expected, 15, narrow, tmp_path), "the page of B is muted by a rule of job A"
    assert run(expected, 15, blind, tmp_path) == []


@pytest.mark.promtool
def test_an_alert_shorter_than_the_wait_of_its_group_notifies_nobody(tmp_path: Path) -> None:
    situation = HANG | {"at": [{"time": "7m-7m+30s", "pages": [{"job_id": "A"}]}]}
    assert run(situation, 15, PAGING, tmp_path) == []
    waiting = Paging(rule_files=[TOY], group_wait_seconds=60)
    found = run(situation, 15, waiting, tmp_path)
    assert len(found) == 1
    assert "pages lack {'job_id': 'A'}" in found[0]


def test_a_week_is_drawn_from_its_seed() -> None:
    assert week(3) == week(3) != week(4)
    faulty = week(3, "hang")
    assert faulty["object"]["job_id"][0] in "NS"
    with pytest.raises(ValueError, match="none of"):
        week(3, "flood")


@pytest.mark.server
@pytest.mark.timeout(300)
def test_a_planted_hang_is_found_by_the_replay() -> None:
    situation = week(1, "hang", length=DAY / 4)
    planted = situation["object"]
    assert any(True for _ in import_lines(build(situation, 60, 600)[:3], 600))
    found = incidents(replay(situation, PAGING, DAY / 4))
    after = [item for item in found if item.time >= planted["time"]]
    assert planted["job_id"] in {item.labels["job_id"] for item in after}


def test_selectors_are_read() -> None:
    assert matchers('up{node=~"a|b",x!="1"}') == [
        ("__name__", "=", "up"),
        ("node", "=~", "a|b"),
        ("x", "!=", "1"),
    ]
    with pytest.raises(ValueError, match="write a name"):
        matchers("{}")
