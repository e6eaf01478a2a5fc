"""Counters and window rows of the model, worked out by hand."""

from typing import Any

import pytest

from .hand_cases import ENDED_WELL, OUT_OF_GPU_MEMORY, PREEMPTED, TIMED_OUT, Fields, Story
from .histories import BASE_SECONDS
from .job_history import Settings
from .windows import Row, sum_windows

INFRA: dict[str, Any] = {"outcome": "failed", "failure_class": "infra", "cause": "xid"}


def _of_sixteen_nodes() -> Story:
    """Five attempts and eight checkpoints of 16 nodes, each of which tells all of it."""
    story = Story()
    for number in range(16):
        node = f"n{number:02}"
        story.node(node, 0, "job_started", num_nodes=16, nproc_per_node=8)
        for attempt in range(5):
            begin = 1 + attempt * 100
            story.node(node, begin, "attempt_started", attempt)
            if attempt:
                story.node(node, begin + 1, "job_resumed", attempt, step=attempt * 2)
            for step in range(2 * attempt, min(2 * attempt + 2, 8)):
                story.node(node, begin + 10 + step, "checkpoint_durable", attempt, step=step)
            story.node(node, begin + 90, "attempt_ended", attempt, **TIMED_OUT)
        story.node(node, 500, "job_finished", 4, **ENDED_WELL)
    return story


def test_what_sixteen_nodes_report_counts_once() -> None:
    record = _of_sixteen_nodes().record()
    assert (record["attempts"], record["checkpoints"]["ok"]) == (5, 8)
    assert record["restores"] == {"ok": 4, "fallback": 0, "failed": 0}
    counters = _of_sixteen_nodes().counters()
    assert (counters["attempts_started"], counters["checkpoints ok"]) == (5, 8)


def test_failed_checkpoints_are_the_highest_total_of_an_attempt() -> None:
    story = Story().span("a", 0, 500).span("b", 0, 500)
    for node, attempt, total, outcome in (
        ("a", 0, 1, "failed"), ("a", 0, 3, "failed"), ("b", 0, 2, "failed"),
        ("b", 1, 1, "failed"), ("b", 0, 2, "invalid"),
    ):  # fmt: skip
        time = 100 + len(story.messages)
        story.node(node, time, "checkpoint_failed", attempt, total=total, outcome=outcome)
    # attempt 0: 3 of a (not 3 + 2); attempt 1: 1
    assert story.record()["checkpoints"] == {"ok": 0, "failed": 4, "invalid": 2}
    assert [total for _, _, total in story.rows("checkpoint_success")] == [1, 2, 1, 2]


def test_a_resume_falls_back_where_any_node_says_so() -> None:
    story = Story().span("a", 0, 500).span("b", 0, 500)
    story.node("a", 10, "job_resumed", step=7).node("b", 11, "job_resumed", step=7, fallback=True)
    story.node("a", 12, "job_resumed", step=7, fallback=False)
    story.node("a", 20, "job_resumed", 1, step=0).node("b", 21, "restore_failed", 1, total=2)
    assert story.record()["restores"] == {"ok": 0, "fallback": 1, "failed": 2}
    assert story.rows("resume_success") == [(10, 0, 1), (21, 0, 2)]


def test_queue_wait_is_the_schedulers_own_where_it_has_both_ends() -> None:
    story = Story().slurm(100, "job_submitted", num_gpus=8).node("a", 1007, "job_started")
    # by whoever tells: 1007 - 100
    assert story.record()["queue_wait_seconds"] == 907
    assert story.slurm(1010, "job_started").record()["queue_wait_seconds"] == 910
    # up to 8 GPUs 900 s are good
    assert story.rows("queue_wait") == [(1007, 0, 1)]


def _of_a_preemption() -> Story:
    story = Story().span("a", 0, 500, **PREEMPTED)
    return story.node("a", 100, "checkpoint_durable", step=1)


def test_a_preemption_loses_the_time_since_the_last_checkpoint() -> None:
    story = _of_a_preemption().node("a", 300, "checkpoint_durable", step=2)
    # (500 - 300) x 8; an interval is (300 - 100) / 1, and (200 + 600) x 8 = 6400 are allowed
    assert story.record()["lost_gpu_seconds"] == 1600
    assert story.rows("preemption_loss") == [(500, 1, 1)]


def test_a_start_after_the_last_checkpoint_is_what_the_loss_counts_from() -> None:
    story = _of_a_preemption().node("a", 400, "attempt_started", 1)
    # (500 - 400) x 8, and one checkpoint makes no interval
    assert (story.record()["lost_gpu_seconds"], story.rows("preemption_loss")) == (800, [])


def test_the_schedulers_word_on_a_loss_holds() -> None:
    story = _of_a_preemption().slurm(490, "job_preempted", lost_gpu_seconds=77.0)
    story.slurm(491, "job_preempted", lost_gpu_seconds=7.0)
    assert story.record()["lost_gpu_seconds"] == 77


@pytest.mark.parametrize("ending", [PREEMPTED, OUT_OF_GPU_MEMORY])
def test_without_a_checkpoint_all_since_the_start_of_the_attempt_is_lost(ending: Fields) -> None:
    story = Story().span("a", 0, 500, **ending)
    assert story.record()["lost_gpu_seconds"] == 500 * 8
    story.node("a", 120, "attempt_ended").node("a", 150, "attempt_started", 1)
    assert story.record()["lost_gpu_seconds"] == 350 * 8


def test_a_failure_loses_the_time_since_the_last_checkpoint_and_a_success_none() -> None:
    story = Story().span("a", 0, 500, **OUT_OF_GPU_MEMORY)
    assert story.node("a", 300, "checkpoint_durable", step=2).record()["lost_gpu_seconds"] == 1600
    assert story.counters().get("preemption_lost_gpu_seconds", 0) == 0
    assert Story().span("a", 0, 500).record()["lost_gpu_seconds"] == 0


def test_requeues_are_counted_by_why_the_run_before_ended() -> None:
    story = Story()
    endings = (PREEMPTED, INFRA, OUT_OF_GPU_MEMORY, TIMED_OUT, ENDED_WELL)
    for number, ending in enumerate(endings):
        story.span("a", number * 100, number * 100 + 50, number, **ending)
    counters = story.counters()
    for cause in ("preemption", "infra", "user", "unknown"):
        assert counters[f"requeues {cause}"] == 1
    # an attempt after a failure of the user is nobody else's
    rows = [(0, 1, 1), (100, 0, 1), (200, 0, 1), (300, 1, 1), (400, 0, 1)]
    assert story.rows("requeue") == rows


@pytest.mark.parametrize(
    ("ending", "labels", "good"),
    [
        (ENDED_WELL, "none succeeded", 1),
        (INFRA, "infra failed", 0),
        (TIMED_OUT, "unknown failed", 0),
        ({"outcome": "not_converged"}, "none not_converged", 0),
        (OUT_OF_GPU_MEMORY, "user failed", None),
        ({"outcome": "cancelled"}, "none cancelled", None),
    ],
)
def test_a_finished_job_counts_by_outcome_and_class(
    ending: dict[str, Any], labels: str, good: int | None
) -> None:
    story = Story().span("a", 0, 100, **ending)
    counters = story.counters()
    assert counters[f"jobs_finished {labels}"] == 1
    assert counters[f"jobs_finished_gpu_seconds {labels}"] == 800
    assert story.rows("job_success") == ([] if good is None else [(100, good, 1)])
    weighted = [] if good is None else [(100, good * 800, 800)]
    assert story.rows("job_success_gpu_seconds") == weighted


def test_a_deadline_is_met_by_a_success_in_time() -> None:
    for end, ending, is_met in ((100, ENDED_WELL, 1), (101, ENDED_WELL, 0), (90, INFRA, 0)):
        story = Story().node("a", 0, "job_started", deadline_time=BASE_SECONDS + 100)
        story.node("a", end, "job_finished", **ending)
        assert story.rows("time_to_complete") == [(end, is_met, 1)]
        assert story.counters()[f"job_deadlines {'met' if is_met else 'missed'}"] == 1


def test_cost_is_gpu_hours_times_the_price_in_its_currency() -> None:
    story = Story().node("a", 0, "job_started", num_gpus=8, num_nodes=1, price_per_gpu_hour=2.5,
                         currency="USD")  # fmt: skip
    story.node("a", 1800, "job_finished", **ENDED_WELL)
    # 1800 s x 8 GPUs = 4 GPU-hours, x 2.5
    assert story.record()["cost"] == {"USD": 10}
    assert story.counters()["cost USD"] == 10
    settings = Settings(price=3.0, currency="EUR")
    unpriced = Story().span("a", 0, 900)
    # 900 x 8 / 3600 = 2 GPU-hours, x 3
    assert unpriced.record(settings=settings)["cost"] == {"EUR": 6}


def test_goodput_grows_with_the_highest_totals_at_each_report() -> None:
    story = Story().span("a", 0, 500)
    for time, productive, startup in ((100, 400.0, 80.0), (200, 300.0, 80.0), (300, 900.0, 90.0)):
        seconds = {"productive": productive, "startup": startup, "unknown": 5.0}
        story.node("a", time, "goodput", rank_seconds=seconds, num_ranks=8)
    # 400, nothing, 500 productive; 80, nothing, 10 of start-up; unknown is in neither
    expected = [(100, 0, 80), (100, 400, 400), (300, 0, 10), (300, 500, 500)]
    assert story.rows("goodput") == expected
    assert story.rows("ettr") == expected


def test_claims_beyond_the_time_of_a_node_are_cut_in_the_windows() -> None:
    story = Story().span("a", 0, 500)
    story.node("a", 100, "goodput", rank_seconds={"productive": 3000.0}, num_ranks=8)
    # (100 x 1.1 + 120) x 8 = 1840
    assert story.rows("goodput")[0] == pytest.approx((100, 1840, 1840))


def test_a_restart_gives_no_second_grace_to_claims() -> None:
    story = Story().span("a", 0, 100).span("a", 130, 500, 1)
    for time, attempt in ((100, 0), (230, 1)):
        seconds = {"productive": 3000.0}
        story.node("a", time, "goodput", attempt, rank_seconds=seconds, num_ranks=8)
    # the second span may reach back over 30 s in which the node was quiet: (100 x 1.1 + 30) x 8
    assert story.rows("goodput")[-1] == pytest.approx((230, 1120, 1120))


def test_communication_moves_a_job_on_and_recovery_does_not() -> None:
    story = Story().span("a", 0, 500).node("a", 200, "attempt_ended", **TIMED_OUT)
    story.node("a", 230, "attempt_started", 1)
    story.node("a", 100, "goodput", rank_seconds={"communication": 40.0}, num_ranks=8)
    # the gap of 30 s x 8 counts as it ends
    assert story.rows("ettr") == [(100, 40, 40), (230, 0, 240)]
    assert story.rows("goodput") == [(100, 0, 40), (230, 0, 240)]


def test_a_row_counts_until_its_window_has_passed() -> None:
    row = Row(BASE_SECONDS, "east", "", "requeue", 1.0, 1.0)
    for age, windows in ((0, 9), (299, 9), (300, 8), (-1, 0), (2_419_199, 1), (2_419_200, 0)):
        assert len(sum_windows([row], BASE_SECONDS + age)) == windows


def test_the_launchers_words_that_lose_are_kept() -> None:
    story = Story().slurm(0, "job_submitted", queue="long").slurm(5, "job_started", queue="short")
    story.node("a", 6, "job_started", queue="long", project="vision")
    record = story.record()
    assert (record["queue"], record["project"]) == ("short", "vision")
    assert record["disagreements"] == [["launcher", "queue", "long"]]
