"""Coverage of measures, failure modes and metrics."""

from pathlib import Path

import pytest
from writers.coverage import (
    alerts_of,
    alerts_of_failure,
    deadlines,
    indicators_of,
    render,
)
from writers.readers import panels_of, readers, rules, rules_of, unread_records
from writers.requirements import FAILURES, MEASURES, Failure, Measure

from lockstep_alerts.reading.model import Duration
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_catalogue import METRICS

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
SPEC = read_spec(spec_path())
FAST_SPEC = read_spec(spec_path(), Duration("5s"))


def test_a_metric_has_a_reader_or_says_for_whom_it_is_and_never_both() -> None:
    assert [m.name for m in METRICS if bool(readers(m)) == bool(m.for_users)] == []
    assert [record.name for record in unread_records()] == []


def test_the_page_is_generated_from_rules_and_boards() -> None:
    assert PAGE.read_text(encoding="utf-8") == render()


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.id)
def test_a_measure_has_an_indicator_a_panel_and_an_alert(measure: Measure) -> None:
    assert indicators_of(measure, SPEC)
    assert panels_of(measure.series)
    assert set(alerts_of(measure, SPEC)) <= set(rules())


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.id)
def test_a_failure_has_its_alerts_in_time_or_says_why_not(failure: Failure) -> None:
    assert any(rules_of(series) for series in failure.series)
    named = alerts_of_failure(failure, SPEC)
    assert set(failure.deadlines) <= set(named)
    late = {
        alert
        for alert, required in failure.deadlines.items()
        if deadlines(alert, FAST_SPEC) > required
    }
    assert late == set(failure.misses)


def test_what_is_not_notified_has_no_alert() -> None:
    [preemption] = [failure for failure in FAILURES if failure.id == "F7"]
    assert alerts_of_failure(preemption, SPEC) == []


def test_measures_and_failures_are_all_there() -> None:
    assert [each.id for each in MEASURES] == [f"M{number}" for number in range(1, 16)]
    assert [each.id for each in FAILURES] == [f"F{number}" for number in range(1, 13)]
