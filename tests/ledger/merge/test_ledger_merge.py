"""How the events of a job's nodes become one record, and what they add to the counters."""

from lockstep_catalogue import ledger as counted

from ..stories import Story
from .replay import PATIENCE, Replay


def test_the_node_that_failed_first_decides_and_what_others_caused_does_not() -> None:
    story = Story().start("n1", num_nodes=3).start("n2").start("n3").after(60)
    story.end("failed", "n3", failure_class="unknown", cause="peer_failure").after(1)
    story.end("failed", "n2", failure_class="infra", cause="xid", cause_ranks=[9]).after(1)
    replay = Replay(story.end("succeeded", "n1"))
    job = replay.job
    assert (job.outcome, job.failure_class, job.cause) == ("failed", "infra", "xid")
    assert (job.cause_node, job.cause_rank) == ("n2", 9)
    assert replay.finished() == {("failed", "infra"): 1}


def test_a_node_that_never_reports_its_end_leaves_the_job_unknown_after_the_wait() -> None:
    story = Story().start("n1", num_nodes=2).start("n2").after(60).end(node="n1")
    replay = Replay(story)
    assert replay.job.settle_at == story.now + PATIENCE.node_seconds
    replay.settle(1)
    assert (replay.job.outcome, replay.job.cause) == ("unknown", "node_silent")
    assert replay.job.silent_nodes == ["n2"]
    assert replay.finished() == {("unknown", "unknown"): 1}


def test_ten_requeues_of_a_failing_job_are_one_job_in_the_counters() -> None:
    story = Story()
    for attempt in range(10):
        story.start(attempt=attempt, num_nodes=1).after(10)
        story.end("failed", attempt=attempt, failure_class="infra").after(10)
    replay = Replay(story)
    # Each end was settled at its time, and taken back by the start that followed.
    assert replay.finished() == {("failed", "infra"): 10}
    assert replay.amended(counted.JOBS_FINISHED) == 9
    assert len(replay.rows("job_success")) == 1
    assert replay.totals[counted.REQUEUES.name, "infra"] == 9
    assert replay.totals[counted.ATTEMPTS_STARTED.name,] == 10
    assert replay.refused == []


def test_what_comes_after_the_end_amends_and_is_not_refused() -> None:
    """A contract of issue 28: nothing of a known job is refused for its lateness."""
    story = Story().start(num_nodes=1, num_gpus=4, price_per_gpu_hour=3600.0).after(60).end()
    replay = Replay(story)
    late = Story(now=story.now - 20)
    late.add("goodput", rank_seconds={"productive": 100.0}, num_gpus=4, num_ranks=4)
    late.add("node_event", sign="xid")
    assert replay.apply(late).refused == []
    assert replay.job.goodput == {"productive": 100.0, "unknown": 140.0}
    assert replay.amended(counted.GPU_SECONDS) == 100
    assert replay.totals[counted.GPU_SECONDS.name, "unknown"] == 240
    assert replay.amendments() == {counted.GPU_SECONDS.name: ("240.0", "140.0")}
    assert replay.rows("goodput") == [(late.now, "goodput", 100.0, 100.0)]


def test_goodput_counts_as_it_grows_and_the_rest_is_recovery_and_unknown() -> None:
    story = Story().start(num_nodes=1, num_gpus=4).after(50)
    totals = {"productive": 60.0, "startup": 20.0}
    story.add("goodput", rank_seconds=totals, num_gpus=4, num_ranks=2).after(50)
    story.add("goodput", rank_seconds={**totals, "productive": 90.0}, num_gpus=4, num_ranks=2)
    story.add("attempt_ended", outcome="failed").after(10).add("attempt_started", attempt=1)
    story.after(40).add("goodput", attempt=1, rank_seconds={"productive": 30.0, "rework": 40.0},
                        num_gpus=4, num_ranks=2)  # fmt: skip
    replay = Replay(story.end(attempt=1))
    goodput = replay.job.goodput
    assert goodput["productive"] == 2 * (90 + 30)
    assert goodput["rework"] == 80
    assert goodput["recovery"] == 4 * 10
    assert sum(goodput.values()) == replay.job.gpu_seconds == 4 * 150
    rows = replay.rows("goodput")
    assert sum(row.good for row in rows) == 240
    assert sum(row.total for row in rows) == 400, "of 200 GPU-seconds nobody said anything"
