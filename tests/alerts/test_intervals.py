"""The shipped alerts at every scrape interval that is supported: promtool runs their cases."""

import subprocess
from pathlib import Path

import pytest
from writers.spec_files import render_limits

from lockstep_alerts.alert import AREAS, JOBS, Area
from lockstep_alerts.output import write_files
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import Spec, read_spec
from lockstep_catalogue import limits
from lockstep_catalogue.windows import ScrapeWindows

from .cases.promtool import cases_file, rules_and_tests

RULES_FILE = JOBS.rules_file
INTERVALS = (5, 10, 15, 30, 60)
# From the fault to the notification: the figures that docs promise; a group waits longer than an
# evaluation, so that a cause is there before its symptom is told.
DEADLINES = {
    "JobNotProgressing": (150, 165, 180, 225, 315),
    "JobLosing": (55, 105, 155, 305, 605),
    "TrainStraggler": (289, 319, 350, 455, 665),
    "TrainCheckpointInvalid": (29, 39, 50, 95, 185),
    "TrainCheckpointFailed": (29, 39, 50, 95, 185),
    "TrainOutOfMemory": (29, 39, 50, 95, 185),
    "TrainReplicasDiffer": (34, 49, 65, 125, 245),
}


def spec_at(seconds: int) -> Spec:
    return read_spec(spec_path(), Duration(f"{seconds}s"))


def test_the_catalogue_holds_what_the_spec_declares() -> None:
    spec = read_spec(spec_path())
    assert spec.windows == limits.DECLARED
    assert Path(limits.__file__).read_text(encoding="utf-8") == render_limits(spec)


@pytest.mark.parametrize("seconds", INTERVALS)
def test_deadlines_follow_from_the_interval(seconds: int) -> None:
    spec = spec_at(seconds)
    by_alert = {each.name: each.deadline_seconds(spec.windows) for each in spec.alerts}
    position = INTERVALS.index(seconds)
    for alert, deadlines in DEADLINES.items():
        assert by_alert[alert] == deadlines[position], alert


@pytest.fixture(scope="module")
def shipped_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rules and rule tests of the shipped spec, at its interval."""
    folder = tmp_path_factory.mktemp("rules")
    write_files(folder, rules_and_tests(read_spec(spec_path())))
    return folder


def rule_tests(folder: Path, *areas: Area) -> subprocess.CompletedProcess[str]:
    files = [folder / cases_file(area) for area in areas]
    command = ["promtool", "test", "rules", *(str(path) for path in files if path.exists())]
    return subprocess.run(command, capture_output=True, check=False, text=True)


@pytest.mark.promtool
@pytest.mark.timeout(240)
@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.name)
def test_every_alert_fires_by_its_deadline_and_is_silent_in_health(
    area: Area, shipped_folder: Path
) -> None:
    done = rule_tests(shipped_folder, area)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promtool
@pytest.mark.release
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seconds", [5, 10, 30, 60])
def test_every_alert_fires_by_its_deadline_at_other_intervals(seconds: int, tmp_path: Path) -> None:
    write_files(tmp_path, rules_and_tests(spec_at(seconds)))
    done = rule_tests(tmp_path, *AREAS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_windows_hold_four_scrapes_and_never_less_than_the_condition_needs() -> None:
    for seconds in INTERVALS:
        windows = ScrapeWindows(seconds)
        assert windows.live_seconds >= 4 * seconds
        assert windows.evaluation_seconds <= seconds
    assert [ScrapeWindows(s).cover(60) for s in INTERVALS] == ["1m", "1m", "1m", "2m", "4m"]
