"""The time of all ranks, by cause and in money."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_catalogue.vocabulary import PHASE_STATES
from lockstep_outcomes.prices.price import Price
from lockstep_reports.analysis.compare import cliffs_delta, measure_change
from lockstep_reports.analysis.cost import Goodput, causes, cost, goodput
from lockstep_reports.analysis.steps import StepAnalysis, analyse
from lockstep_reports.recording.account import divide
from lockstep_reports.recording.recording import parse_bound
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge
from lockstep_reports.verdict.losses import Loss

from ..report_command import report_json, run_report
from ..synthetic_job import Slow, SyntheticJob, losses_of, recording_of


def with_page_age(steps: Steps, page_age_seconds: float) -> Steps:
    """The same job with pages made so long before each rank's first step."""
    members = [
        replace(member, page_created_seconds=float(start) - page_age_seconds)
        for member, start in zip(steps.members, steps.start[:, 0], strict=True)
    ]
    return replace(steps, members=tuple(members))


def analysed(steps: Steps, price: float | None = None) -> StepAnalysis:
    return analyse(recording_of(steps), price=None if price is None else Price(price, "EUR"))


def statement_of(steps: Steps, losses: Sequence[Loss] = ()) -> Goodput:
    return goodput(steps, divide(steps), losses)


def means_over_ten(steps: Steps) -> Steps:
    """The same job in columns that are means over ten steps."""
    ten = np.arange(len(steps.numbers)).reshape(-1, 10)
    unknown = np.full((len(steps.members), len(ten)), np.nan)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.asarray(values[:, ten].mean(axis=2))

    return replace(
        steps,
        numbers=steps.numbers[ten[:, 0]],
        seconds=mean(steps.seconds),
        phases={phase: mean(values) for phase, values in steps.phases.items()},
        start=steps.start[:, ten[:, 0]],
        last_arrival=unknown,
        loss=mean(steps.loss),
        steps_per_column=np.full(len(ten), 10.0),
    )


def test_startup_is_a_state_of_its_own_and_all_states_make_up_the_time() -> None:
    steps = with_page_age(SyntheticJob().steps(), 30.0)
    statement = statement_of(steps)
    assert statement.seconds["startup"] == pytest.approx(4 * 30.0)
    spans = steps.start[:, -1] + steps.seconds[:, -1] - steps.start[:, 0] + 30.0
    assert statement.covered_seconds == pytest.approx(float(spans.sum()), rel=1e-3)


@pytest.mark.parametrize(("first", "is_counted"), [(0, True), (1, True), (2, False)])
def test_the_first_step_has_the_number_zero_or_one(first: int, is_counted: bool) -> None:
    steps = with_page_age(SyntheticJob().steps(), 30.0)
    startup = statement_of(replace(steps, numbers=steps.numbers + first)).seconds["startup"]
    assert startup == pytest.approx(4 * 30.0 if is_counted else 0.0)


@pytest.mark.parametrize("factor", [0, 1])
def test_a_page_of_unknown_age_or_created_after_its_first_step_adds_no_startup(factor: int) -> None:
    steps = with_page_age(SyntheticJob().steps(), 30.0)
    created = factor * (float(steps.start[2, 0]) + 5.0)  # 0 is unknown
    members = [
        replace(m, page_created_seconds=created) if m.rank == 2 else m for m in steps.members
    ]
    statement = statement_of(replace(steps, members=tuple(members)))
    assert statement.seconds["startup"] == pytest.approx(3 * 30.0)


@pytest.mark.parametrize("phase", STEP_PHASES)
def test_seconds_of_a_phase_are_charged_to_its_state_alone(phase: str) -> None:
    steps = SyntheticJob().steps()
    longer = np.zeros_like(steps.seconds)
    longer[1, 7] = 2.5
    before = statement_of(steps).seconds
    phases = {**steps.phases, phase: steps.phases[phase] + longer}
    after = statement_of(replace(steps, seconds=steps.seconds + longer, phases=phases)).seconds
    moved = {state: after[state] - before[state] for state in after if state != "unknown"}
    expected = dict.fromkeys(moved, 0.0) | {PHASE_STATES[phase]: 2.5}
    assert moved == pytest.approx(expected)


def test_time_between_rows_is_unknown_and_phases_beyond_the_clock_make_none_negative() -> None:
    steps = SyntheticJob().steps()
    paused = replace(steps, start=steps.start + 7.0 * (steps.numbers >= 100))
    before, after = statement_of(steps), statement_of(paused)
    assert after.seconds["unknown"] == pytest.approx(before.seconds["unknown"] + 4 * 7.0, abs=0.5)
    first = steps.start[:, :1]
    quick = replace(steps, start=first + (steps.start - first) / 2)
    assert statement_of(quick).seconds["unknown"] == 0


@pytest.mark.parametrize("factor", [1, 1000])
def test_straggler_wait_is_taken_out_of_communication_and_never_more_than_that(factor: int) -> None:
    steps = SyntheticJob(slow=(Slow(rank=1),)).steps()
    _, (episode,) = judge(steps, score(steps))[:2]
    costly = replace(episode, lost_by_step=episode.lost_by_step * factor)
    without, charged = (
        statement_of(steps).seconds,
        statement_of(steps, losses_of(steps, (costly,))).seconds,
    )
    moved = ("communication", "productive", "other")
    wait = min(4 * costly.lost_seconds, sum(without[state] for state in moved))
    assert charged["straggler_wait"] == pytest.approx(wait)
    assert sum(charged.values()) == pytest.approx(sum(without.values()))
    assert min(charged.values()) >= 0


def test_every_rank_of_the_job_pays_also_one_that_left_no_page() -> None:
    steps = SyntheticJob(slow=(Slow(rank=1),)).steps()
    scores = score(steps)
    _, episodes = judge(steps, scores)[:2]
    lost = cost(replace(steps, world_size=6), scores, losses_of(steps, episodes))
    assert lost.lost_gpu_seconds == pytest.approx(6 * lost.lost_seconds)
    assert lost.lost_money is None


def test_nothing_is_a_share_of_no_time() -> None:
    steps = SyntheticJob().steps()
    none = replace(steps, seconds=np.full_like(steps.seconds, np.nan))
    assert cost(none, score(none), ()).lost_ratio is None


def test_causes_are_costliest_first_and_money_follows_the_price() -> None:
    report = analysed(SyntheticJob(slow=(Slow(rank=2),)).steps(), price=5.0)
    costs = causes(report.goodput, 5.0)
    assert [cause.gpu_hours for cause in costs] == sorted(
        (cause.gpu_hours for cause in costs), reverse=True
    )
    assert {cause.cause for cause in costs} >= {"straggler_wait", "communication", "data_wait"}
    assert "evaluation" not in {cause.cause for cause in costs}, "it took no time"
    assert "productive" not in {cause.cause for cause in costs}
    wait = next(cause for cause in costs if cause.cause == "straggler_wait")
    assert wait.money == pytest.approx(report.cost.lost_money)
    total_ratio = sum(cause.ratio for cause in costs) + (report.goodput.ratio or 0.0)
    assert total_ratio == pytest.approx(1.0)


def test_columns_that_stand_for_many_steps_cost_as_much_as_the_steps() -> None:
    """Means over tens of steps keep verdict and cost, though not the tail."""
    steps = SyntheticJob(num_steps=800, slow=(Slow(rank=1, from_step=400),)).steps()
    fine, rough = analysed(steps), analysed(means_over_ten(steps))
    assert (rough.verdict.ranks, rough.verdict.phase) == (fine.verdict.ranks, fine.verdict.phase)
    assert rough.cost.lost_seconds == pytest.approx(fine.cost.lost_seconds, rel=0.05)
    assert rough.summary.count == 800
    assert rough.summary.p95_seconds is None
    for state, seconds in fine.goodput.seconds.items():
        assert rough.goodput.seconds[state] == pytest.approx(seconds, rel=0.05, abs=1.0)


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


def test_a_comparison_stands_in_terminal_page_and_markdown(page_root: Path, tmp_path: Path) -> None:
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
