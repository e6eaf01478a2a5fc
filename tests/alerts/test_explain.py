"""Remarks of the generator before it writes: rates of false pages, costs, and alerts in words."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from lockstep_alerts.checks import costs, refuse_too_costly
from lockstep_alerts.command import alerts, explained, false_alerts
from lockstep_alerts.reading.entry import SpecError
from lockstep_alerts.shipped import runbooks_path, spec_path
from lockstep_alerts.spec import read_spec
from lockstep_catalogue.recorded import JOB_PHASES

from .test_spec import GOOD, written

SPEC = read_spec(spec_path())
PAGE = SPEC.objective_windows.event_page


@pytest.mark.parametrize(
    ("per_week", "good_ratio", "at_most"),
    [
        # Of bench/alerts/false_pages.py, which draws whole months of jobs with numpy, plus chance.
        (10, 0.95, 0.1),
        (50, 0.95, 0.2),
        (200, 0.95, 0.45),
        (1000, 0.95, 0.05),
    ],
)
def test_chance_pages_seldom_at_objectives(
    per_week: float, good_ratio: float, at_most: float
) -> None:
    rate, months = false_alerts(PAGE, good_ratio, per_week)
    assert 0 <= rate <= at_most
    assert months >= 100
    assert false_alerts(PAGE, good_ratio, per_week) == (rate, months), "the seed is fixed"


def test_more_failures_than_the_objective_allows_page_far_more_often() -> None:
    # The limits of 95 %, with failures as at 85 %: a simulation that counts nothing would pass.
    strict = [limit for limit in PAGE if limit.window == "24h"]
    assert false_alerts(strict, 0.95, 200)[0] < 1
    lax = false_alerts([type(strict[0])(window="24h", recent=None, sigmas=0.1, spare=0)], 0.95, 200)
    assert lax[0] > 10


def test_the_shipped_rules_fit_into_their_intervals_and_every_rule_reads_something() -> None:
    refuse_too_costly(SPEC)
    every = list(costs(SPEC))
    assert len(every) > 70
    assert {cost.rule for cost in every if not cost.num_series} <= CONSTANT
    [value] = [cost for cost in every if cost.rule == JOB_PHASES.name]
    # At least the phases of all ranks, over twenty scrapes.
    assert value.num_samples > SPEC.size.ranks * 7 * 20


CONSTANT = {
    "TrainWatchdog",
    "job_class_slo:lockstep_ledger_slo:good_ratio",
    "slo:lockstep_train_slice:min_ratio",
    "cluster_slo:lockstep_ledger_slo_counter:total5m",
    "cluster_slo:lockstep_ledger_slo_counter:bad5m",
}


def test_a_size_that_one_server_cannot_evaluate_is_refused_unwritten(tmp_path: Path) -> None:
    text = spec_path().read_text(encoding="utf-8").replace("ranks: 1024", "ranks: 400000")
    spec = written(tmp_path, text)
    out = tmp_path / "out"
    result = CliRunner().invoke(alerts, ["generate", "--spec", str(spec), "--out", str(out)])
    line = next(n for n, words in enumerate(text.splitlines(), 1) if words == "size:")
    assert result.exit_code == 2
    assert f"slos.yaml:{line + 1}: size: rule " in result.output
    assert "one Prometheus evaluates it for about" in result.output
    assert not out.exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("good_ratio: 0.95", "good_ratio: 0.8"), "would hardly ever be reached"),
        (("slo: job_success", "slo: job_sucess"), "did you mean job_success?"),
        (("retention: 15d", "retention: 3d"), "slices are counted over 7d"),
        (("window: 6h", "window: 5h"), "must be one of 5m, 30m"),
    ],
)
def test_an_impossible_spec_is_refused_with_its_line_and_status_2(
    tmp_path: Path, change: tuple[str, str], sentence: str
) -> None:
    spec, out = written(tmp_path, GOOD.replace(*change)), tmp_path / "out"
    result = CliRunner().invoke(alerts, ["generate", "--spec", str(spec), "--out", str(out)])
    assert result.exit_code == 2
    line = next(n for n, text in enumerate(spec.read_text().splitlines(), 1) if change[1] in text)
    assert f"slos.yaml:{line}: " in result.output
    assert sentence in result.output
    assert not out.exists()


def test_every_alert_is_explained() -> None:
    titles = ["Fires", "Reads", "How soon", "False alarms", "Wakes", "Runbook"]
    for alert in SPEC.alerts:
        text = explained(SPEC, alert, runbooks_path())
        assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == titles
        for title, section in zip(titles, text.split("\n## ")[1:], strict=True):
            reads_nothing = title == "Reads" and alert.name == "TrainWatchdog"
            assert "\n- " in section or reads_nothing, (alert.name, title)


def test_explain_says_limits_windows_rates_and_whom_it_wakes() -> None:
    page = CliRunner().invoke(alerts, ["explain", "ClusterLosing"]).output
    for words in ("6 or more jobs", "in 6h", "a page:", "0.01"):
        assert words in page
    goodput = CliRunner().invoke(alerts, ["explain", "TrainSLOBurn"]).output
    assert "less than 72.0% good time in 24h and in the last 2h" in goodput
    stalled = CliRunner().invoke(alerts, ["explain", "JobNotProgressing"]).output
    assert "nothing keeps a page quiet" in stalled


def test_an_alert_that_is_none_is_refused_with_near_names() -> None:
    result = CliRunner().invoke(alerts, ["explain", "TrainSLOBurns"])
    assert result.exit_code == 2
    assert "the spec has no such alert; try TrainSLOBurn" in result.output


def test_rates_are_printed_and_a_refused_spec_touches_no_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    generated = CliRunner().invoke(alerts, ["generate", "--out", str(out)])
    assert generated.exit_code == 0
    assert "ClusterLosing: 0." in generated.output
    assert "times in 28 days by chance alone" in generated.output
    before = {path: path.read_bytes() for path in out.iterdir()}
    spec = written(tmp_path, GOOD.replace("0.95", "1.5"))
    refused = CliRunner().invoke(alerts, ["generate", "--spec", str(spec), "--out", str(out)])
    assert refused.exit_code == 2
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    with pytest.raises(SpecError, match=r"good_ratio 1\.5: must be above"):
        read_spec(spec)
