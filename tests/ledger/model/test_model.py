"""Runs, spans and GPU time of the model, worked out by hand."""

import pytest

from .hand_cases import ENDED_WELL, OUT_OF_GPU_MEMORY, PREEMPTED, TIMED_OUT, Story
from .histories import BASE_SECONDS
from .job_history import Settings
from .ledger_model import expect


def test_a_node_has_its_gpus_from_start_to_end() -> None:
    # (500 - 100) s x 8 GPUs
    record = Story().span("a", 100, 500).record()
    assert record["gpu_seconds"] == 3200
    assert record["states"] == {"unknown": 3200}
    assert (record["started"], record["ended"]) == (BASE_SECONDS + 100, BASE_SECONDS + 500)


def test_states_beyond_the_time_of_a_node_are_scaled_down() -> None:
    seconds = {"productive": 3000.0, "communication": 1000.0}
    story = Story().span("a", 100, 500).node("a", 400, "goodput", rank_seconds=seconds, num_ranks=8)
    # 4000 of 3200: each x 0.8
    assert story.record()["states"] == {"productive": 2400, "communication": 800}


def test_reports_count_by_their_highest_total_and_the_rest_is_unknown() -> None:
    story = Story().span("a", 100, 500)
    for time, seconds in ((200, 500.0), (300, 900.0), (350, 700.0)):
        story.node("a", time, "goodput", rank_seconds={"productive": seconds}, num_ranks=8)
    # the highest is 900; 3200 - 900 = 2300
    assert story.record()["states"] == {"productive": 900, "unknown": 2300}


def test_two_ranks_on_a_gpu_have_half_of_it_each() -> None:
    story = Story().span("a", 100, 500)
    story.node("a", 300, "goodput", rank_seconds={"productive": 1600.0}, num_ranks=16)
    # 1600 x 8 GPUs / 16 ranks
    assert story.record()["states"]["productive"] == 800


def test_time_between_two_attempts_of_a_span_is_recovery() -> None:
    story = Story().span("a", 100, 500).node("a", 101, "attempt_started", num_gpus=4)
    story.node("a", 200, "attempt_ended", **TIMED_OUT)
    story.node("a", 230, "attempt_started", 1, num_gpus=4)
    record = story.record()
    # (230 - 200) x 4 = 120 of (500 - 100) x 4 = 1600
    assert record["states"] == {"recovery": 120, "unknown": 1480}
    assert (record["attempts"], record["requeues"]) == (2, [])


def test_the_allocation_of_the_scheduler_is_the_total() -> None:
    story = Story().slurm(10, "job_started", num_gpus=16, num_nodes=2)
    story.span("a", 12, 490).span("b", 13, 495)
    story.slurm(510, "job_finished", **ENDED_WELL)
    # (510 - 10) x 16, and not 478 x 8 + 482 x 8
    assert story.record()["gpu_seconds"] == 8000


def test_parts_are_counted_from_their_grant_to_their_release() -> None:
    story = Story().slurm(10, "job_started", num_gpus=8).slurm(500, "job_finished", **ENDED_WELL)
    story.slurm(10, "resources_allocated", part="a", num_gpus=4)
    story.slurm(400, "resources_released", part="a")
    story.slurm(20, "resources_allocated", part="b", num_gpus=4)
    # (400 - 10) x 4 + (500 - 20) x 4: b ends with the job
    assert story.record()["gpu_seconds"] == 1560 + 1920


def test_zero_declared_gpus_bill_nothing() -> None:
    story = Story().slurm(10, "job_started", num_gpus=0, price_per_gpu_hour=2.0, currency="EUR")
    story.span("a", 12, 490).slurm(510, "job_finished", **ENDED_WELL)
    record = story.record()
    assert (record["gpu_seconds"], record["cost"]) == (0, {})


def test_a_silent_node_has_its_time_until_the_end_that_the_scheduler_states() -> None:
    story = Story().slurm(10, "job_started").slurm(510, "job_finished", **ENDED_WELL)
    story.node("a", 20, "job_started", nproc_per_node=4).span("b", 20, 500)
    # a: (510 - 20) x 4; b: (500 - 20) x 8
    record = story.record()
    assert record["gpu_seconds"] == 1960 + 3840
    assert record["silent_nodes"] == ["a"]


def test_a_silent_node_without_a_scheduler_has_its_time_until_its_last_event() -> None:
    story = Story().span("b", 20, 500).node("a", 20, "job_started", nproc_per_node=4)
    story.node("a", 300, "checkpoint_durable", step=5)
    # a: (300 - 20) x 4; b: (500 - 20) x 8
    assert story.record()["gpu_seconds"] == 1120 + 3840


def test_gpus_of_a_node_come_from_the_job_where_the_node_does_not_say() -> None:
    story = Story().node("a", 100, "job_started", num_gpus=16, num_nodes=4, nproc_per_node=8)
    story.node("a", 200, "job_finished", **ENDED_WELL)
    # 100 s x 16 / 4
    assert story.record()["gpu_seconds"] == 400


def test_a_late_word_on_the_first_run_does_not_end_the_second() -> None:
    story = Story().slurm(0, "job_started", 0, num_gpus=8).slurm(600, "job_started", 1, num_gpus=8)
    story.slurm(900, "job_finished", 1, **ENDED_WELL)
    story.slurm(500, "job_finished", 0, **PREEMPTED).slurm(505, "job_requeued", 0)
    record = story.record()
    # 500 x 8 + 300 x 8
    assert [run["gpu_seconds"] for run in record["runs"]] == [4000, 2400]
    assert (record["requeues"], record["outcome"]) == (["preemption"], "succeeded")


def test_a_second_end_of_a_run_is_ignored() -> None:
    story = Story().slurm(0, "job_started", num_gpus=1).slurm(100, "job_finished", **ENDED_WELL)
    story.slurm(101, "job_finished", **ENDED_WELL)
    assert story.record()["gpu_seconds"] == 100


def test_a_requeue_on_other_nodes_is_a_run_of_its_own() -> None:
    story = Story().span("a", 0, 100, **PREEMPTED).span("b", 200, 400, attempt=1)
    record = story.record()
    assert [run["nodes"] for run in record["runs"]] == [["a"], ["b"]]
    assert record["gpu_seconds"] == 800 + 1600


def test_a_requeue_on_another_node_under_attempt_0_is_one_too() -> None:
    # A job of one node: the run is full, and its node had ended.
    record = Story().span("a", 0, 100, **PREEMPTED).span("b", 200, 400).record()
    assert (len(record["runs"]), record["attempts"]) == (2, 2)


def test_a_launcher_that_starts_again_within_an_allocation_is_a_restart_in_place() -> None:
    story = Story().slurm(0, "job_started", num_gpus=8).slurm(500, "job_finished", **ENDED_WELL)
    story.span("a", 1, 200, 0, **OUT_OF_GPU_MEMORY).span("a", 220, 490, 1)
    record = story.record()
    assert (record["attempts"], record["requeues"], record["outcome"]) == (2, [], "succeeded")
    assert record["gpu_seconds"] == 4000


def test_a_span_long_after_the_known_end_is_a_run_that_the_scheduler_does_not_know() -> None:
    story = Story().slurm(0, "job_started", num_gpus=8).slurm(500, "job_finished", **PREEMPTED)
    story.span("a", 1, 490, 0, **PREEMPTED).span("a", 505.5, 600, 1)
    record = story.record()
    # 500 x 8 of the scheduler; 94.5 x 8 of the node
    assert [run["gpu_seconds"] for run in record["runs"]] == [4000, 756]


@pytest.mark.parametrize(("begin", "runs"), [(595, 2), (594.5, 3)])
def test_a_node_may_be_five_seconds_early(begin: float, runs: int) -> None:
    story = Story().slurm(0, "job_started", 0, num_gpus=8).slurm(500, "job_finished", **PREEMPTED)
    story.slurm(600, "job_started", 1, num_gpus=8).slurm(900, "job_finished", 1, **ENDED_WELL)
    story.span("a", begin, 880, 1)
    assert len(story.record()["runs"]) == runs


def test_an_end_without_a_start_proves_no_time() -> None:
    story = Story().span("a", 0, 100).node("b", 90, "job_finished", **ENDED_WELL)
    assert story.record()["gpu_seconds"] == 800
    # and after a span of its own it is ignored
    record = Story().span("a", 0, 100).node("a", 150, "job_finished", **ENDED_WELL).record()
    assert (record["gpu_seconds"], len(record["runs"])) == (800, 1)


def test_a_launcher_that_died_has_its_time_until_it_is_started_again() -> None:
    story = Story().slurm(0, "job_started").slurm(500, "job_finished", **ENDED_WELL)
    story.node("a", 10, "job_started", nproc_per_node=8).span("a", 300, 490)
    # (300 - 10) x 8, and not until the end that the scheduler states; (490 - 300) x 8
    assert story.record()["gpu_seconds"] == 2320 + 1520


def test_a_running_job_has_what_its_nodes_have_reported() -> None:
    story = Story().node("a", 0, "job_started", nproc_per_node=8)
    story.node("a", 100, "goodput", rank_seconds={"productive": 500.0}, num_ranks=8)
    record = story.record(now=200)
    assert (record["status"], record["gpu_seconds"]) == ("running", 500)
    # at most what its GPUs can have had: (100 - 0) x 8
    story.node("a", 100, "goodput", rank_seconds={"productive": 5000.0}, num_ranks=8)
    assert story.record(now=200)["gpu_seconds"] == 800


def test_a_silent_node_that_comes_back_without_its_start_has_a_new_span() -> None:
    story = Story().slurm(0, "job_started", 0, num_gpus=8).slurm(500, "job_requeued")
    story.slurm(600, "job_started", 1).slurm(900, "job_finished", 1, **ENDED_WELL)
    story.node("a", 1, "job_started", 0).node("a", 602, "attempt_started", 1)
    story.node("a", 890, "job_finished", 1, **ENDED_WELL)
    assert [run["nodes"] for run in story.record()["runs"]] == [["a"], ["a"]]
    assert story.record()["silent_nodes"] == []


def test_a_reused_id_is_another_run_however_late() -> None:
    record = Story().span("a", 0, 100).span("a", 5_000_000, 5_000_200).record(now=6e6)
    assert (record["gpu_seconds"], record["requeues"]) == (800 + 1600, ["unknown"])


def test_a_clock_that_is_off_is_corrected_by_what_the_delivery_says() -> None:
    story = Story().span("a", 0, 100)
    # The node's clock is 300 s ahead as it sends: 0 -> -300, and of 1 s nothing changes.
    for ahead, started in ((300.0, -300.0), (1.0, 0.0)):
        arrivals = [
            type(each)(event=each.event, received=each.received, sent=each.received + ahead)
            for each in story.arrivals()
        ]
        found = expect(arrivals, Settings(), BASE_SECONDS + 1e7)
        (record,) = found.records.values()
        assert record["started"] == BASE_SECONDS + started
        assert record["gpu_seconds"] == 800


def test_a_doubled_event_counts_once() -> None:
    arrivals = Story().span("a", 0, 100).arrivals()
    once, twice = (expect(each, Settings(), 2e9) for each in (arrivals, arrivals * 2))
    assert once == twice


def test_a_node_that_starts_again_without_an_end_begins_another_run() -> None:
    story = Story().node("a", 0, "job_started", nproc_per_node=8)
    record = story.node("a", 40, "checkpoint_durable", step=1).span("a", 300, 400).record()
    # until its last event, 40 x 8, and 100 x 8
    assert [run["gpu_seconds"] for run in record["runs"]] == [320, 800]


def test_the_newest_number_of_gpus_of_a_node_holds() -> None:
    story = Story().node("a", 0, "attempt_started", num_gpus=8)
    story.node("a", 50, "attempt_started", 1, num_gpus=4)
    # 100 s x 4
    assert story.node("a", 100, "job_finished", 1, **ENDED_WELL).record()["gpu_seconds"] == 400


def test_each_run_has_its_own_parts_and_its_own_number_of_gpus() -> None:
    parts, sizes = Story(), Story()
    for attempt, begin, end, gpus in ((0, 0, 500, 4), (1, 503, 703, 8)):
        for story, words in ((parts, {}), (sizes, {"num_gpus": gpus})):
            story.slurm(begin, "job_started", attempt, **words)
            story.slurm(end, "job_finished", attempt, **ENDED_WELL)
        parts.slurm(begin, "resources_allocated", attempt, part=f"p{attempt}", num_gpus=gpus)
        parts.slurm(end, "resources_released", attempt, part=f"p{attempt}")
    for story in (parts, sizes):
        # 500 x 4 and 200 x 8, though the second begins within 5 s of the end of the first
        assert [run["gpu_seconds"] for run in story.record()["runs"]] == [2000, 1600]


def test_parts_belong_to_the_newest_run_of_the_scheduler_that_begins_before_them() -> None:
    story = Story()
    for attempt, begin, part, end in ((0, 40, 42, 43), (1, 44, 47, 47)):
        story.slurm(begin, "job_started", attempt, num_gpus=2)
        story.slurm(begin, "resources_allocated", attempt, part=f"p{attempt}", num_gpus=2)
        story.slurm(part, "resources_released", attempt, part=f"p{attempt}")
        story.slurm(end, "job_finished", attempt, **ENDED_WELL)
    # 2 s x 2, and 3 s x 2
    assert [run["gpu_seconds"] for run in story.record()["runs"]] == [4, 6]
