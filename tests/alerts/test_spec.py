from pathlib import Path

import pytest

from lockstep_alerts.conditions.attempts import NotFinite
from lockstep_alerts.conditions.jobs import JobLosing, JobNotProgressing
from lockstep_alerts.reading.entry import SpecError
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

GOOD = """\
scrape_interval: 15s
size: {nodes: 8, ranks: 64, jobs: 4, jobs_per_week: 50}
limits:
  queue_wait: [{up_to_gpus: 8, wait: 15m}, {wait: 1h}]
  preemption_grace: 10m
  checkpoint_blocking: 1m
  checkpoint_blocking_ratio: 0.02
  recovery_point_intervals: 3
  min_activity_ratio: 0.2
  min_sync_ratio: 0.05
  min_baseline_slices: 30
  min_wait_ratio: 0.001
  max_other_ratio: 0.25
  standing: 20s
  standing_steps: 3
windows:
  retention: 15d
  events:
    page:
      - {window: 6h, recent: 30m, sigmas: 3, spare: 1.5, burn_rate: 5.6}
      - {window: 24h, recent: 2h, sigmas: 3, spare: 1.5, burn_rate: 2.8}
    ticket:
      - {window: 24h, sigmas: 2, spare: 1}
  gpu_seconds:
    page:
      - {window: 1h, recent: 5m, burn_rate: 13.4}
    ticket:
      - {window: 24h, recent: 2h, burn_rate: 2.8}
objectives:
  - slo: job_success
    measure: M1
    good_ratio: 0.95
    bad: failed jobs
    page: TrainSLOBurn
alerts:
  - alert: TrainLossBad
    failure: F5
    severity: critical
    kind: not_finite
    window: 10m
    summary: s
    description: d
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "slos.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shipped_spec_reads_and_keeps_its_order() -> None:
    symptoms = read_spec(spec_path()).condition_alerts
    assert [alert.name for alert in symptoms][:2] == ["JobNotProgressing", "JobLosing"]
    assert isinstance(symptoms[0].condition, JobNotProgressing)


def test_a_good_spec_reads(tmp_path: Path) -> None:
    (alert,) = read_spec(written(tmp_path, GOOD)).condition_alerts
    assert isinstance(alert.condition, NotFinite)
    assert alert.condition.window.seconds == 600
    assert alert.pending is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("window: 10m", "windows: 10m", r"windows '10m': unknown key; did you mean window\? "),
        ("kind: not_finite", "kind: odd", r"kind 'odd': must be one of .*not_finite,"),
        ("severity: critical", "severity: page", r"severity 'page': must be one of critical,"),
        ("window: 10m", "window: 10", r"window 10: write a duration such as 10s or 2 scrapes"),
        ("window: 10m", "window: 0 scrapes", r"window: '0 scrapes' is not a duration"),
        ("window: 10m", "window: 59s", r"'59s': holds fewer than 4 scrapes, one every 15s"),
        ("window: 10m", "window: 10m\n    for: 10s", r"for '10s': holds fewer than 1 scrapes"),
        ("interval: 15s", "interval: 90s", r"scrape_interval '90s': .* choose 1s to 1m"),
        ("interval: 15s", "interval: 15", r"scrape_interval 15: write a duration such as 15s"),
        ("interval: 15s", "interval: 2.5s", r"scrape_interval '2.5s': "),
        ("window: 10m", "window: 10min", r"window: '10min' is not a duration"),
        ("    window: 10m\n", "", r"window is missing; add it"),
        ("alert: TrainLossBad", "alert: ../x", r"alert '../x': must match"),
        ("alert: TrainLossBad", "alert: [1]", r"alert \[1\]: write text"),
        ("alerts:", "alert:", r"must hold the keys scrape_interval, size, limits, windows"),
        (
            "scrape_interval: 15s\n",
            "",
            r"must hold the keys scrape_interval, size, limits, windows",
        ),
        ("alerts:\n", "alerts: [\n", r"is not YAML"),
        ("min_wait_ratio: 0.001", "min_wait_ratio: 2", r":\d+: limits: min_wait_ratio 2: must be"),
        ("{wait: 1h}", "{up_to_gpus: 4, wait: 1h}", r"limits: queue_wait .*: sizes must rise"),
        ("  standing_steps: 3\n", "", r"limits: standing_steps is missing; add it"),
        (
            "  standing_steps: 3\n",
            "  standing_steps: 3\n  page_gpus: 65\n",
            r"limits: page_gpus 65: no job is so large at size.ranks 64; write less",
        ),
    ],
)
def test_a_wrong_spec_is_refused_in_words(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(SpecError, match=message) as caught:
        read_spec(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_window_that_another_interval_cannot_fill_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace("10m", "2m"))
    assert read_spec(path, Duration("30s")).windows.scrape_seconds == 30
    with pytest.raises(SpecError, match="'2m': holds fewer than 4 scrapes, one every 60s"):
        read_spec(path, Duration("1m"))


def test_durations_in_scrapes_follow_the_interval(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace("window: 10m", "window: 4 scrapes\n    for: 1 scrape"))
    for seconds in (5, 60):
        (alert,) = read_spec(path, Duration(f"{seconds}s")).condition_alerts
        assert isinstance(alert.condition, NotFinite)
        assert alert.condition.window.seconds == 4 * seconds
        assert alert.pending is not None
        assert alert.pending.seconds == seconds


@pytest.mark.parametrize("ratio", ["0", "1.5", "yes", "'0.1'", ".nan"])
def test_a_ratio_lies_between_0_and_1(tmp_path: Path, ratio: str) -> None:
    text = GOOD.replace("not_finite", "stage_uneven").replace(
        "window: 10m", f"above_ratio: {ratio}"
    )
    with pytest.raises(SpecError, match="above_ratio"):
        read_spec(written(tmp_path, text))


def test_a_name_stands_there_once(tmp_path: Path) -> None:
    twice = GOOD + GOOD.partition("alerts:\n")[2]
    with pytest.raises(SpecError, match="is listed twice"):
        read_spec(written(tmp_path, twice))


def test_a_missing_spec_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.yaml: it cannot be read: No such file"):
        read_spec(tmp_path / "none.yaml")


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
