"""Own limits in a file of a few lines, and what it cannot mean."""

from pathlib import Path

import pytest

from lockstep_alerts.conditions.jobs import JobLosing
from lockstep_alerts.reading.entry import SpecError
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

from .test_spec import written

OWN = """\
extends: shipped
limits:
  page_gpus: 16
  classes: [interactive, production, debug]
  classes_without_pages: [interactive, debug]
alerts:
  - alert: JobLosing
    above_ratio: 0.4
objectives:
  - slo: job_success
    good_ratio: 0.9
"""


def test_an_overlay_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    own, shipped = read_spec(written(tmp_path, OWN)), read_spec(spec_path())
    assert own.limits.page_gpus == 16
    assert own.limits.classes_without_pages == ("interactive", "debug")
    assert own.limits.min_sync_ratio == shipped.limits.min_sync_ratio
    losing = own.condition_alerts[1].condition
    assert isinstance(losing, JobLosing)
    assert losing.above_ratio == 0.4
    assert own.condition_alerts[2:] == shipped.condition_alerts[2:]
    assert own.objectives[0].good_ratio == 0.9
    assert [each.name for each in own.alerts] == [each.name for each in shipped.alerts]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("shipped", "mine", r"slos\.yaml:1: extends: write shipped"),
        ("limits:", "limit:", r"slos\.yaml:2: limit: the spec has no such section"),
        ("page_gpus: 16", "page_gpus: many", r"slos\.yaml:3: limits: page_gpus 'many'"),
        ("page_gpus", "page_gpu", r"slos\.yaml:3: limits: page_gpu 16: .*page_gpus"),
        ("JobLosing", "JobLosin", r"slos\.yaml:7: .*mean JobLosing\?"),
        ("alerts:\n  - alert", "alerts:\n    alert", r"slos\.yaml:6: alerts: must be a list"),
        ("- alert: JobLosing", "- for: 1m", r"slos\.yaml:7: .*names what it changes by"),
        ("[interactive, debug]", "[production]", r"slos\.yaml:5: .*production is in classes_with"),
        (
            "[interactive, debug]",
            "[debgu]",
            r"slos\.yaml:5: .*debgu is not in classes.*mean debug\?",
        ),
        (
            "good_ratio: 0.9",
            "job_classes: {producton: 0.9}",
            r"slos\.yaml:11: .*producton is not in classes of the spec; did you mean production\?",
        ),
        ("above_ratio: 0.4", "above_ratio: 4", r"slos\.yaml:8: .*above_ratio 4"),
    ],
)
def test_a_wrong_overlay_is_refused_with_its_own_line(
    tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    with pytest.raises(SpecError, match=sentence):
        read_spec(written(tmp_path, OWN.replace(old, new)))
