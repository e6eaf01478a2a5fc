"""A recording that cannot show a slow rank is judged unknown, with the reason; never nobody."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_records.page.writer import PageWriter, RankIdentity
from lockstep_reports.analysis.steps import StepAnalysis, analyse
from lockstep_reports.document.advice import step_advice
from lockstep_reports.document.headline import findings
from lockstep_reports.readers.page_rows import waits_by_row
from lockstep_reports.readers.pages import read_pages
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import score
from lockstep_reports.top.table import RankRow, why_unobserved
from lockstep_reports.verdict.judge import judge
from lockstep_reports.verdict.verdict import Verdict

from ..synthetic_job import Slow, SyntheticJob, recording_of

LATE = Slow(rank=1, seconds=0.05, from_step=60, until_step=140)


def analysed(steps: Steps) -> StepAnalysis:
    return analyse(recording_of(steps))


def waiting(job: SyntheticJob, *waits: Slow) -> Steps:
    """The job's steps, in which these waits for a core are known and all others are zero."""
    steps = job.steps()
    run_queue = np.zeros_like(steps.seconds)
    for wait in waits:
        run_queue[wait.rank, wait.from_step : wait.until_step] += wait.seconds
    return replace(steps, run_queue=run_queue)


def crowded(steps: Steps, wait_ratio: float) -> Steps:
    """The same steps on a host where all ranks wait so long for each second of their work."""
    own = {name: (1 + wait_ratio) * steps.phases[name] for name in OWN_WORK_PHASES}
    phases = steps.phases | own
    work = np.sum(list(own.values()), axis=0)
    # Whoever works longest waits for nobody but the transfer.
    phases["sync"] = work.max(axis=0) + 0.01 - work
    waits = wait_ratio * np.sum([steps.phases[name] for name in OWN_WORK_PHASES], axis=0)
    return replace(steps, phases=phases, seconds=work + phases["sync"], run_queue=waits)


def verdict_of(steps: Steps) -> Verdict:
    return judge(steps, score(steps))[0]


def with_phases(steps: Steps, **seconds: np.ndarray) -> Steps:
    phases = {**steps.phases, **seconds}
    return replace(steps, phases=phases, seconds=np.sum(list(phases.values()), axis=0))


def without_waits(steps: Steps) -> Steps:
    """The loop's waiting is inside its backward, as with an unknown instrumentation point."""
    hidden = steps.phases["backward"] + steps.phases["sync"]
    return with_phases(steps, backward=hidden, sync=np.zeros_like(hidden))


def unclaimed(steps: Steps) -> Steps:
    return with_phases(steps, other=steps.phases["other"] + 0.05)


def by_the_host(steps: Steps) -> Steps:
    members = tuple(replace(member, gpu_uuid=f"GPU-{member.rank}") for member in steps.members)
    return replace(steps, members=members, by_device=np.zeros_like(steps.seconds))


def without_a_rank(steps: Steps) -> Steps:
    return replace(steps, world_size=steps.world_size + 1)


def without_rows(steps: Steps) -> Steps:
    seconds = steps.seconds.copy()
    seconds[1, 50:120] = np.nan
    return replace(steps, seconds=seconds)


BLIND = {
    "No rank waited for the others": without_waits,
    "hidden in backward, and a late rank would not show. Put `with monitor.phase": without_waits,
    "lies in no marked phase": unclaimed,
    "recorded times of the host": by_the_host,
    "left no row of many steps": without_rows,
}


@pytest.mark.parametrize("reason", BLIND)
def test_what_cannot_show_a_slow_rank_is_unknown_with_the_reason(reason: str) -> None:
    steps = SyntheticJob().steps()
    assert verdict_of(steps).kind == "nobody"
    verdict = verdict_of(BLIND[reason](steps))
    assert (verdict.kind, verdict.ranks) == ("unknown", ())
    assert reason in verdict.evidence[0]


def test_a_backward_forty_per_cent_slower_whose_waits_are_hidden_is_not_called_nobody() -> None:
    steps = without_waits(SyntheticJob(slow=(Slow(rank=1, seconds=0.018),)).steps())
    assert verdict_of(steps).kind == "unknown"


@pytest.mark.parametrize("hide", [without_a_rank, by_the_host])
def test_a_slow_rank_that_shows_is_named_all_the_same(hide: Callable[[Steps], Steps]) -> None:
    steps = SyntheticJob(slow=(Slow(rank=1),)).steps()
    assert verdict_of(hide(steps)).ranks == (1,)


def test_who_is_not_there_was_late_by_the_shortest_wait_of_the_others_at_most() -> None:
    verdict = verdict_of(without_a_rank(SyntheticJob().steps()))
    assert verdict.kind == "nobody"
    assert "held up the others by 10 ms a step at most" in verdict.evidence[-1]


def test_times_of_the_device_are_not_doubted() -> None:
    steps = by_the_host(SyntheticJob().steps())
    seen = replace(steps, by_device=np.ones_like(steps.seconds))
    assert verdict_of(seen).kind == "nobody"


def rank_row(rank: int, wait_seconds: float, other_seconds: float) -> RankRow:
    return RankRow(
        job_id="j", rank=rank, node="n", state="training", phase="forward", step=7,
        lag_seconds=0.0, wait_seconds=wait_seconds, step_seconds=0.1, tokens_per_second=None,
        loss=None, quiet_seconds=0.1, other_seconds=other_seconds,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wait_seconds", "other_seconds", "reason"),
    [(0.0, 0.001, "no rank waits"), (0.01, 0.04, "40% of the step"), (0.01, 0.001, None)],
)
def test_the_live_view_says_when_a_slow_rank_would_not_show(
    wait_seconds: float, other_seconds: float, reason: str | None
) -> None:
    notes = why_unobserved([rank_row(rank, wait_seconds, other_seconds) for rank in range(2)])
    assert len(notes) == (reason is not None)
    assert reason is None or reason in notes[0]
    assert not why_unobserved([rank_row(0, wait_seconds, other_seconds)])


def test_pages_of_the_host_on_a_gpu_are_read_as_such(page_root: Path) -> None:
    job = SyntheticJob(job_id="j", num_steps=30).write(page_root)
    steps = read_pages(job / "0")[0]
    assert steps.by_device is not None
    assert np.nanmax(steps.by_device) == 0


def test_a_rank_that_waited_for_its_cores_is_not_named_and_the_cost_stays() -> None:
    job = SyntheticJob(slow=(LATE,), nodes=2)
    named, analysis = analysed(job.steps()), analysed(waiting(job, LATE))
    assert named.verdict.ranks == (1,)
    assert (analysis.verdict.kind, analysis.verdict.ranks) == ("nobody", ())
    assert analysis.verdict.cause == "busy_host"
    assert analysis.cost.lost_seconds == pytest.approx(named.cost.lost_seconds, rel=0.05)
    [loss] = analysis.losses
    assert (analysis.episodes, loss.kind, loss.ranks) == ((), "busy_host", (1,))
    first = next(findings(analysis))
    assert first.severity == "nobody"
    assert first.sentence.startswith("Nobody was slow: node node-0 was busy with other work, ")
    assert first.details[0].startswith(
        "All waited for ranks that waited for cores that other processes had (rank 1): "
    )
    assert "cores of its own" in " ".join(step_advice(analysis))


@pytest.mark.parametrize(("explained_ratio", "is_named"), [(0.4, True), (0.6, False)])
def test_waits_must_explain_half_of_the_lateness(explained_ratio: float, is_named: bool) -> None:
    wait = replace(LATE, seconds=explained_ratio * LATE.seconds)
    analysis = analysed(waiting(SyntheticJob(slow=(LATE,)), wait))
    assert (analysis.verdict.ranks == (1,)) is is_named


def test_waits_of_other_steps_or_ranks_excuse_nobody() -> None:
    elsewhere = replace(LATE, from_step=0, until_step=50), replace(LATE, rank=2)
    for wait in elsewhere:
        assert analysed(waiting(SyntheticJob(slow=(LATE,)), wait)).verdict.ranks == (1,)


def test_unknown_waits_excuse_nobody() -> None:
    steps = waiting(SyntheticJob(slow=(LATE,)), LATE)
    assert steps.run_queue is not None
    steps.run_queue[:, 60:] = np.nan
    assert analysed(steps).verdict.ranks == (1,)


def test_no_workload_is_slow_where_all_ranks_waited_for_their_cores_at_once() -> None:
    everywhere = tuple(replace(LATE, rank=rank) for rank in range(4))
    job = SyntheticJob(slow=everywhere)
    assert analysed(job.steps()).verdict.kind == "workload"
    analysis = analysed(waiting(job, *everywhere))
    assert (analysis.verdict.kind, analysis.verdict.cause) == ("nobody", "busy_host")
    assert next(findings(analysis)).severity == "nobody"


def test_a_value_for_several_rows_goes_to_those_that_it_made_longer() -> None:
    nan = np.nan
    waits = np.array([nan, nan, 0.02, 0.03, nan, 0.0, nan])
    seconds = np.array([0.01, 0.03, 0.01, 0.05, 0.01, 0.02, 0.01])
    expected = [0.0, 0.02, 0.0, 0.03, 0.0, 0.0, nan]
    assert waits_by_row(waits, seconds) == pytest.approx(expected, nan_ok=True)
    assert np.isnan(waits_by_row(np.full(3, nan), np.ones(3))).all()
    # What no row's length explains is shared by length: waits of another thread in a collective.
    assert waits_by_row(np.array([nan, 0.06]), np.array([0.04, 0.08])) == pytest.approx(
        [0.02 / 3, 0.04 + 0.04 / 3]
    )


def test_waits_are_read_from_pages_and_unknown_where_a_page_has_none(page_root: Path) -> None:
    folder = SyntheticJob(num_steps=20).write(page_root)
    assert read_pages(folder / "0")[0].run_queue is None
    path = folder / "0" / "rank-00002.page"
    path.unlink()
    page = PageWriter(path, RankIdentity(job_id="synthetic", rank=2, world_size=4), rows=32)
    page.add_to_row("run_queue_seconds", 0.25)
    page.append(step=3, start_ns=1, seconds=0.5)
    page.commit(1)
    page.close()
    run_queue = read_pages(folder / "0")[0].run_queue
    assert run_queue is not None
    assert run_queue[2, 3] == 0.25
    assert np.count_nonzero(~np.isnan(run_queue)) == 1


def test_a_first_step_that_does_more_names_nobody_who_waits_for_its_core_afterwards() -> None:
    wait = replace(LATE, from_step=0, until_step=15, seconds=0.2)
    steps = waiting(SyntheticJob(slow=(wait,)), wait)
    steps.phases["backward"][1, 0] += 1.0
    steps.phases["sync"][[0, 2, 3], 0] += 1.0
    verdict = analysed(steps).verdict
    assert (verdict.ranks, verdict.cause) == ((), "busy_host")


def test_what_costs_a_tenth_of_other_work_on_the_host_names_nobody() -> None:
    waits = replace(LATE, seconds=0.3)
    little = Slow(rank=2, seconds=0.02, from_step=150, until_step=200)
    analysis = analysed(waiting(SyntheticJob(slow=(waits, little)), waits))
    assert (analysis.verdict.ranks, analysis.verdict.cause) == ((), "busy_host")
    assert any(episode.ranks == (2,) for episode in analysis.episodes)


def with_cores(page_root: Path, queued: float, cores: Sequence[float | None], sync: float) -> Steps:
    """Steps as read from a page, each of 0.4 s of forward; of the times on cores one may lack."""
    path = SyntheticJob(ranks=1, num_steps=4).write(page_root) / "0" / "rank-00000.page"
    path.unlink()
    page = PageWriter(path, RankIdentity(job_id="synthetic", rank=0, world_size=1), rows=32)
    for step, core_seconds in enumerate(cores):
        if core_seconds is not None:
            page.add_to_row("run_queue_seconds", queued)
            page.add_to_row("core_seconds", core_seconds)
        phases = 0.0, 0.4, 0.0, sync, 0.0, 0.0, 0.0, 0.0
        page.append(step=step, start_ns=1, seconds=0.4 + sync, phase_seconds=phases)
    page.commit(1)
    page.close()
    return read_pages(path.parent)[0]


def test_own_work_without_a_core_or_a_wait_for_one_is_read_from_pages(page_root: Path) -> None:
    steps = with_cores(page_root, 0.1, (0.3, 0.3, None, 0.5), 0.2)
    assert steps.blocked is not None
    assert steps.run_queue is not None
    # Nobody knows since when the first value counts; the last one is of two steps.
    assert steps.blocked[0].tolist() == pytest.approx([0.0, 0.0, 0.1, 0.1], abs=1e-6)
    assert steps.run_queue[0].tolist() == pytest.approx([0.1, 0.1, 0.05, 0.05], abs=1e-6)
    assert steps.queued_ratio == pytest.approx(0.3 / 2.4)


def test_a_wait_for_a_core_in_a_collective_is_none_of_own_work(page_root: Path) -> None:
    steps = with_cores(page_root, 0.3, [0.35] * 4, 0.5)
    assert steps.run_queue is not None
    assert steps.run_queue[0].tolist() == pytest.approx([0.05] * 4, abs=1e-6)
    assert steps.queued_ratio == pytest.approx(0.3 / 0.9)


@pytest.mark.parametrize(("wait_ratio", "is_named"), [(0.0, True), (0.2, False)])
def test_a_fifth_more_time_on_a_core_is_the_hosts_where_others_take_cores_and_caches(
    wait_ratio: float, *, is_named: bool
) -> None:
    slow = Slow(rank=1, seconds=0.018, from_step=60)
    steps = crowded(SyntheticJob(slow=(slow,), num_steps=400).steps(), wait_ratio)
    awake = replace(steps, blocked=np.zeros_like(steps.seconds))
    verdict = analysed(awake).verdict
    assert (verdict.ranks == (1,)) is is_named
    assert verdict.cause == (None if is_named else "busy_host")


def test_a_fifth_more_of_sleep_is_the_ranks_own_on_a_crowded_host_too() -> None:
    slow = Slow(rank=1, seconds=0.018, from_step=60)
    steps = crowded(SyntheticJob(slow=(slow,), num_steps=400).steps(), 0.2)
    blocked = np.zeros_like(steps.seconds)
    blocked[1, 60:] = 0.018
    assert analysed(replace(steps, blocked=blocked)).verdict.ranks == (1,)


def test_a_stop_is_told_beside_a_core_that_is_slower_for_longer() -> None:
    slow = Slow(rank=1, seconds=0.018, from_step=20)
    steps = crowded(SyntheticJob(slow=(slow,), num_steps=400).steps(), 0.2)
    stopped = np.zeros_like(steps.seconds)
    for number, column in enumerate(range(150, 400, 9)):
        phase = ("forward", "backward", "optimizer")[number % 3]
        stopped[1, column] = 0.08
        steps.phases[phase][1, column] += 0.08
        steps.phases["sync"][[0, 2, 3], column] += 0.08
    seconds = np.sum(list(steps.phases.values()), axis=0)
    steps = replace(steps, seconds=seconds, stopped=stopped, blocked=np.zeros_like(seconds))
    analysis = analysed(steps)
    assert (analysis.verdict.ranks, analysis.verdict.cause) == ((1,), "process_stopped")
    stop = next(e for e in analysis.episodes if e.cause is not None)
    assert stop.start_step == 150
    assert 0.8 * 28 * 0.08 < stop.lost_seconds <= 28 * 0.08
    assert not any(line.startswith("Rank 1 came last") for line in stop.evidence)


def test_slow_steps_of_all_ranks_are_a_crowded_hosts_but_for_sleep_and_uneven_data() -> None:
    everywhere = tuple(
        Slow(rank=rank, seconds=0.06, from_step=60, until_step=140) for rank in range(4)
    )
    job = SyntheticJob(slow=everywhere, num_steps=240)
    assert analysed(job.steps()).verdict.kind == "workload"
    steps = crowded(job.steps(), 0.3)
    awake = replace(steps, blocked=np.zeros_like(steps.seconds))
    verdict = analysed(awake).verdict
    assert (verdict.kind, verdict.cause) == ("nobody", "busy_host")
    assert awake.blocked is not None
    awake.blocked[:, 60:140] = 0.06
    assert analysed(awake).verdict.kind == "workload"
    tokens = np.full(steps.seconds.shape, 100.0)
    tokens[:, 60:140] = 180.0
    uneven = replace(steps, blocked=np.zeros_like(steps.seconds), tokens=tokens)
    verdict = analysed(uneven).verdict
    assert (verdict.kind, verdict.cause) == ("workload", "tokens")


def test_who_is_waited_for_without_longer_work_on_a_crowded_host_without_gpus_is_excused() -> None:
    steps = crowded(SyntheticJob(num_steps=400).steps(), 0.2)
    steps.phases["sync"][[0, 2, 3], 100:200] += 0.02
    steps = replace(steps, seconds=np.sum(list(steps.phases.values()), axis=0))
    assert steps.run_queue is not None
    steps = replace(steps, blocked=np.zeros_like(steps.seconds))
    quiet = replace(steps, run_queue=np.zeros_like(steps.run_queue))
    assert analysed(quiet).verdict.ranks == (1,)
    assert analysed(steps).verdict.ranks == ()
    asleep = np.zeros_like(steps.seconds)
    asleep[1, 100:200] = 0.015
    assert analysed(replace(steps, blocked=asleep)).verdict.ranks == (1,)
    members = tuple(replace(member, gpu_uuid=f"GPU-{member.rank}") for member in steps.members)
    assert analysed(replace(steps, members=members)).verdict.ranks == (1,)
