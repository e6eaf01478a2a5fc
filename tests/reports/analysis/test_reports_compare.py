"""Comparisons of two runs, and of a window with its baseline."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep_reports.analysis.cost import cliffs_delta, measure_change
from lockstep_reports.recording.align import parse_bound

from ..report_command import report_json, run_report
from ..synthetic_job import Slow, SyntheticJob

FIXTURES = Path(__file__).parents[2] / "fixtures"
TRACE = FIXTURES / "straggler-bytedance/trace-ST.parquet"
TIMES = FIXTURES / "minibatch-alibaba/job_3_norm.csv"
LOG = FIXTURES / "joblogs/finished.log"
few = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@given(few, few)
def test_the_effect_counts_pairs(before: list[int], after: list[int]) -> None:
    pairs = [(new > old) - (new < old) for new in after for old in before]
    delta = cliffs_delta(np.array(before, float), np.array(after, float))
    assert delta == pytest.approx(sum(pairs) / len(pairs))


def test_few_of_many_pairs_of_equal_runs_are_reported_as_changed() -> None:
    generator = np.random.default_rng(1)
    sure = sum(
        measure_change(
            "step", generator.normal(1, 0.05, 200), generator.normal(1, 0.05, 200), seed=at
        ).is_sure
        for at in range(60)
    )
    assert sure <= 9  # 5 % of 60 are 3; nine or less with a probability over 0.999


def test_a_change_has_its_interval() -> None:
    generator = np.random.default_rng(2)
    change = measure_change(
        "step", generator.normal(1, 0.01, 300), generator.normal(1.1, 0.01, 300)
    )
    assert change.is_sure
    assert change.low_seconds is not None
    assert change.high_seconds is not None
    assert change.low_seconds < 0.1 < change.high_seconds + 0.005
    assert change.effect == pytest.approx(1, abs=0.01)


def test_few_steps_have_no_interval() -> None:
    change = measure_change("step", np.ones(5), np.ones(500))
    assert (change.low_seconds, change.effect, change.is_sure) == (None, None, False)
    assert change.difference_seconds == 0


def test_a_slow_run_is_compared_with_a_healthy_one(page_root: Path) -> None:
    SyntheticJob(job_id="good").write(page_root)
    SyntheticJob(job_id="bad", slow=(Slow(rank=2, from_step=0),), seed=3).write(page_root)
    comparison = report_json("bad", "--against", "good")["comparison"]
    assert comparison["against"] == "good"
    assert comparison["verdict_before"]["kind"] == "nobody"
    assert comparison["verdict_changed"]
    changes = {line["what"]: line for line in comparison["changes"]}
    assert changes["step"]["difference_seconds"] == pytest.approx(0.03, rel=0.1)
    assert changes["step"]["low_seconds"] > 0
    # The victims wait, so the median rank's synchronisation grows and not its backward.
    assert changes["sync"]["difference_seconds"] == pytest.approx(0.03, rel=0.15)
    assert abs(changes["backward"]["difference_seconds"]) < 0.001
    assert (
        comparison["figures"]["lost_ratio"]["after"] > comparison["figures"]["lost_ratio"]["before"]
    )


def test_a_run_compared_with_itself_has_not_changed(page_root: Path) -> None:
    SyntheticJob(job_id="same").write(page_root)
    comparison = report_json("same", "--against", "same")["comparison"]
    assert not comparison["verdict_changed"]
    assert all(line["difference_seconds"] == 0 for line in comparison["changes"])


def test_a_window_is_cut_by_step_and_by_time(page_root: Path) -> None:
    job = SyntheticJob(job_id="cut", slow=(Slow(rank=1, from_step=100),))
    job.write(page_root)
    early = report_json("cut", "--to", "99")
    assert early["verdict"]["kind"] == "nobody"
    assert (early["steps"]["first"], early["steps"]["last"]) == (0, 99)
    began = float(np.nanmin(job.steps().start[:, 100]))
    late = report_json("cut", "--from", f"{began - 0.001:.4f}")
    assert late["verdict"]["ranks"] == [1]
    assert late["steps"]["first"] == 100


def test_a_trace_is_cut_by_step() -> None:
    all_steps = report_json(TRACE)["steps"]
    window = report_json(TRACE, "--from", all_steps["first"] + 1)
    assert window["steps"]["count"] == all_steps["count"] - 1
    assert window["what_if"]["slowdown"] > 1


def test_the_comparison_stands_in_terminal_page_and_markdown(
    page_root: Path, tmp_path: Path
) -> None:
    SyntheticJob(job_id="x", slow=(Slow(rank=2),)).write(page_root)
    page, text = tmp_path / "x.html", tmp_path / "x.md"
    result = run_report(
        "x", "--from", 100, "--against", "baseline", "--html", page, "--markdown", text
    )
    assert result.exit_code == 0, result.output
    for text_of_format in (result.output, page.read_text(), text.read_text()):
        assert "longer than in the steps before the window" in " ".join(text_of_format.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TRACE, "--from", "soon"), "'soon' is not a bound of a window"),
        ((TRACE, "--from", "999999"), "no step of"),
        ((TIMES, "--from", "2026-01-01"), "tells no times"),
        ((TRACE, "--against", "baseline"), "give --from"),
        ((TRACE, "--against", "nowhere"), "job 'nowhere' is not under"),
        ((LOG, "--from", "3"), "a log is judged as a whole"),
        ((LOG, "--against", "baseline"), "a log has no window"),
        ((FIXTURES / "flight-recorder-nvrx/lock_gil_1st", "--to", "3"), "leave out --from"),
        ((TRACE, "--json", "-", "--markdown", "-"), "given for two formats"),
        ((TRACE, "--perfetto", "-", "--markdown", "-"), "given for two formats"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence_and_exit_2(
    arguments: tuple[object, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_report(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


def test_bounds_are_steps_times_or_time_ago() -> None:
    assert parse_bound("400", 0).step == 400
    assert parse_bound("1790000000", 0).wall_seconds == 1_790_000_000
    assert parse_bound("-15m", 1000).wall_seconds == 100
    assert parse_bound("now", 7).wall_seconds == 7
    assert parse_bound("1970-01-01T01:00:00+01:00", 7).wall_seconds == 0
    assert parse_bound("1970-01-01T01:00:00", 7).wall_seconds == 3600
