"""Outcomes, waits and joins of the model, worked out by hand."""

import pytest

from .hand_cases import ENDED_WELL, KILLED, OUT_OF_GPU_MEMORY, PREEMPTED, TIMED_OUT, Fields, Story
from .histories import BASE_SECONDS
from .job_history import Settlement

CANCELLED: Fields = {"outcome": "cancelled"}
TIME_LIMIT: Fields = {"outcome": "time_limit", "failure_class": "user", "cause": "time_limit"}
NODE_FAILURE: Fields = {"outcome": "failed", "failure_class": "infra", "cause": "node_failure"}
HOST_OOM: Fields = {"outcome": "failed", "failure_class": "user", "cause": "host_oom"}
PAGES: Fields = {"source": "pages"}
UNKNOWN: Fields = {"outcome": "unknown"}
BARE: Fields = {"outcome": "failed", "failure_class": "unknown", "cause": "exit"}
XID: Fields = {"sign": "xid", "detail": "79 GPU has fallen off the bus"}


def _verdict(story: Story) -> tuple[str, str | None]:
    record = story.record()
    return record["outcome"], record["failure_class"]


def test_the_earliest_end_that_is_no_consequence_decides() -> None:
    story = Story().span("a", 0, 100, **TIMED_OUT).span("b", 0, 103, **OUT_OF_GPU_MEMORY)
    story.span("c", 0, 104, **KILLED)
    assert _verdict(story) == ("failed", "user")
    assert story.record()["cause"] == "gpu_oom"


@pytest.mark.parametrize(("seconds", "cause"), [(9_000, "xid"), (8_199, "collective_timeout")])
def test_an_incident_of_the_last_half_hour_is_the_cause_of_a_time_out(
    seconds: float, cause: str
) -> None:
    # The deciding end is at 10,000: 1,800 s before it is 8,200.
    story = Story().span("a", 0, 10_000, **TIMED_OUT).node("b", seconds, "node_event", **XID)
    story.node("a", 10, "goodput", rank_seconds={})
    assert story.record()["cause"] == cause


def test_an_incident_does_not_replace_a_cause() -> None:
    story = Story().span("a", 0, 1000, **OUT_OF_GPU_MEMORY).node("a", 900, "node_event", **XID)
    assert story.record()["cause"] == "gpu_oom"


@pytest.mark.parametrize(
    ("node", "scheduler", "outcome", "lost"),
    [
        (KILLED, TIME_LIMIT, "time_limit", [["launcher", "outcome", "failed"]]),
        (KILLED, NODE_FAILURE, "failed", []),
        (KILLED, BARE, "failed", []),
        (TIMED_OUT, CANCELLED, "cancelled", [["launcher", "outcome", "failed"]]),
        (OUT_OF_GPU_MEMORY, TIME_LIMIT, "failed", [["scheduler", "outcome", "time_limit"]]),
        (OUT_OF_GPU_MEMORY, ENDED_WELL, "failed", [["scheduler", "outcome", "succeeded"]]),
        (ENDED_WELL, BARE, "succeeded", [["scheduler", "outcome", "failed"]]),
        (ENDED_WELL, CANCELLED, "succeeded", [["scheduler", "outcome", "cancelled"]]),
        (CANCELLED, PREEMPTED, "preempted", [["launcher", "outcome", "cancelled"]]),
        (CANCELLED, TIME_LIMIT, "time_limit", [["launcher", "outcome", "cancelled"]]),
        (PREEMPTED, CANCELLED, "cancelled", [["launcher", "outcome", "preempted"]]),
        (PREEMPTED, BARE, "preempted", [["scheduler", "outcome", "failed"]]),
        (UNKNOWN, BARE, "failed", []),
        (UNKNOWN, ENDED_WELL, "succeeded", []),
        (UNKNOWN, CANCELLED, "cancelled", []),
        (OUT_OF_GPU_MEMORY, UNKNOWN, "failed", []),
        ({**ENDED_WELL, **PAGES}, BARE, "failed", []),
        ({**ENDED_WELL, **PAGES}, TIME_LIMIT, "time_limit", [["launcher", "outcome", "succeeded"]]),
        ({**ENDED_WELL, **PAGES}, CANCELLED, "cancelled", [["launcher", "outcome", "succeeded"]]),
        ({**ENDED_WELL, **PAGES}, HOST_OOM, "failed", [["launcher", "outcome", "succeeded"]]),
        ({**ENDED_WELL, **PAGES}, NODE_FAILURE, "failed", [["launcher", "outcome", "succeeded"]]),
        ({**ENDED_WELL, **PAGES}, ENDED_WELL, "succeeded", []),
        (ENDED_WELL, {**ENDED_WELL, "exit_code": 0}, "succeeded", []),
        (ENDED_WELL, {**ENDED_WELL, "exit_code": 3}, "succeeded", [["scheduler", "exit_code", 3]]),
        ({**ENDED_WELL, **PAGES}, UNKNOWN, "succeeded", []),
        ({**OUT_OF_GPU_MEMORY, **PAGES}, BARE, "failed", []),
        (
            {**OUT_OF_GPU_MEMORY, **PAGES},
            TIME_LIMIT,
            "failed",
            [["scheduler", "outcome", "time_limit"]],
        ),
    ],
)
def test_precedence_between_a_node_and_its_scheduler(
    node: Fields, scheduler: Fields, outcome: str, lost: list[list[str]]
) -> None:
    story = Story().slurm(0, "job_started", num_gpus=8).span("a", 1, 500, **node)
    record = story.slurm(502, "job_finished", **scheduler).record()
    assert (record["outcome"], record["disagreements"]) == (outcome, lost)


def test_a_success_of_all_nodes_is_as_weak_as_that_of_one_which_pages_imply() -> None:
    story = Story().slurm(0, "job_started", num_gpus=16, num_nodes=2).span("a", 1, 500)
    story.span("b", 1, 501, **ENDED_WELL, **PAGES).slurm(502, "job_finished", **BARE)
    assert _verdict(story) == ("failed", "unknown")


def test_a_scheduler_speaks_for_silent_nodes() -> None:
    story = Story().span("a", 1, 500).node("b", 1, "job_started", nproc_per_node=8)
    assert story.record()["cause"] == "node_silent"
    assert _verdict(story) == ("unknown", "unknown")
    story.slurm(0, "job_started", num_nodes=2).slurm(502, "job_finished", **ENDED_WELL)
    assert _verdict(story) == ("succeeded", None)


def test_a_node_that_nobody_heard_of_is_waited_for() -> None:
    story = Story().node("a", 0, "job_started", num_nodes=2)
    story.node("a", 100, "job_finished", **ENDED_WELL)
    assert [story.record(now)["status"] for now in (699, 700)] == ["ended", "finished"]
    record = story.record()
    assert (record["outcome"], record["silent_nodes"]) == ("unknown", ["unseen 1"])


def test_a_failure_stands_while_others_are_silent() -> None:
    story = Story().span("a", 1, 500, **OUT_OF_GPU_MEMORY).node("b", 1, "job_started", num_nodes=3)
    record = story.record()
    assert (record["outcome"], record["silent_nodes"]) == ("failed", ["b", "unseen 1"])


def test_a_preemption_that_only_the_queue_states_is_the_outcome_of_the_run() -> None:
    story = Story().slurm(0, "job_started", 0, num_gpus=1).slurm(98, "job_preempted", 0)
    story.slurm(100, "job_requeued", 0).slurm(200, "job_started", 1)
    record = story.slurm(300, "job_finished", 1, **ENDED_WELL).record()
    assert (record["requeues"], record["preemptions"]) == (["preemption"], 1)


def test_the_last_end_of_a_node_counts_and_not_that_before_its_restart_in_place() -> None:
    story = Story().slurm(0, "job_started").span("a", 1, 100, 0, **OUT_OF_GPU_MEMORY)
    assert _verdict(story.span("a", 110, 200, 1)) == ("succeeded", None)


def test_waits_end_at_their_second() -> None:
    story = Story().span("a", 0, 100).node("b", 0, "job_started")
    # 600 s from the receipt of the first end
    assert [story.record(now)["status"] for now in (699, 700)] == ["ended", "finished"]
    story = Story().span("a", 0, 100, **PREEMPTED)
    # a day from the receipt of the end
    assert [story.record(now)["status"] for now in (86_499, 86_500)] == ["ended", "finished"]
    story = Story().node("a", 0, "job_started").node("a", 50, "goodput", rank_seconds={})
    # six hours from the last event; ended with it
    assert [story.record(now)["status"] for now in (21_649, 21_650)] == ["running", "finished"]
    assert story.record(21_650)["ended"] == BASE_SECONDS + 50


def test_a_complete_run_waits_for_nobody() -> None:
    story = Story().node("a", 0, "job_started", num_nodes=1)
    story.node("a", 100, "job_finished", **ENDED_WELL)
    assert story.record(100)["status"] == "finished"
    only_slurm = Story().slurm(0, "job_started").slurm(100, "job_finished", **ENDED_WELL)
    assert only_slurm.record(100)["status"] == "finished"


def test_a_job_that_its_scheduler_reports_as_running_is_not_silent() -> None:
    story = Story().slurm(0, "job_started", num_gpus=8).node("a", 1, "job_started")
    assert story.record()["status"] == "running"


def test_pending_for_ever_ends_after_thirty_days() -> None:
    story = Story().slurm(0, "job_submitted", num_gpus=8)
    days = 30 * 86_400.0
    assert [story.record(now)["status"] for now in (days - 1, days)] == ["pending", "finished"]
    record = story.record()
    assert (record["outcome"], record["cause"], record["gpu_seconds"]) == (
        "unknown", "never_started", 0,
    )  # fmt: skip


def test_a_job_that_is_cancelled_in_the_queue_ends_there() -> None:
    never = Story().slurm(0, "job_submitted").slurm(50, "job_finished", **CANCELLED).record(60)
    assert (never["status"], never["outcome"], never["started"]) == ("finished", "cancelled", None)
    story = Story().slurm(0, "job_started", num_gpus=8).slurm(100, "job_requeued")
    assert story.record(200)["status"] == "pending"
    record = story.slurm(300, "job_finished", **CANCELLED).record(300)
    assert (record["outcome"], record["gpu_seconds"], record["requeues"]) == ("cancelled", 800, [])


def test_a_sign_of_life_voids_a_settlement() -> None:
    story = Story().node("a", 0, "job_started", nproc_per_node=8)
    settled = [Settlement(job_id="small", run_begin=BASE_SECONDS, time=BASE_SECONDS + 30_000)]
    at: Fields = {"now": 31_000.0, "settlements": settled}
    (record,) = story.expected(**at).records.values()
    assert record["status"] == "finished"
    story.node("a", 30_500, "goodput", rank_seconds={})
    (record,) = story.expected(**at).records.values()
    assert record["status"] == "running"


def test_an_alias_makes_one_job_of_two_ids() -> None:
    story = Story()
    fields: Fields = {"job_id": "run-1", "aliases": ["slurm:alpha:small"]}
    story.node("a", -1, "job_started", **fields)
    story.slurm(0, "job_started", aliases=["slurm:alpha:small"], num_gpus=8)
    story.node("a", 90, "job_finished", job_id="run-1", **KILLED)
    record = story.slurm(100, "job_finished", **NODE_FAILURE).record()
    assert record["job_id"] == "small"
    assert {"small", "run-1", "slurm:alpha:small"} <= set(record["ids"])
    assert (record["cause"], record["gpu_seconds"]) == ("node_failure", 800)


def test_an_alias_joins_no_two_owners() -> None:
    story = Story()
    for node, owner in (("a", 1), ("b", 2)):
        fields: Fields = {"job_id": f"run-{node}", "aliases": ["torchrun:x"], "owner": owner}
        story.node(node, 1, "job_started", **fields)
    assert {job_id for _, job_id in story.expected().records} == {"run-a", "run-b"}


def test_two_slurms_with_the_same_number_stay_apart() -> None:
    story = Story()
    for begin, name in ((0, "alpha"), (1, "beta")):
        aliases = [f"slurm:{name}:small"]
        story.slurm(begin, "job_started", aliases=aliases, num_gpus=1)
        story.slurm(begin + 100, "job_finished", aliases=aliases, **ENDED_WELL)
    records = story.expected().records
    assert {job_id for _, job_id in records} == {"small", "small@beta"}
    assert [record["gpu_seconds"] for record in records.values()] == [100, 100]


def test_the_owner_who_was_first_keeps_the_id() -> None:
    story = Story().node("a", 0, "job_started", owner=1, num_nodes=1)
    story.node("b", 1, "job_started", owner=2).node("a", 100, "job_finished", owner=1)
    record = story.record()
    assert record["runs"][0]["nodes"] == ["a"]
