"""What the events of a job count for each objective, and by which class they are served."""

import pytest

from lockstep_catalogue import ledger as counted
from lockstep_ledger import exposition

from ..stories import Story
from .replay import Replay


def slo_counts(replay: Replay, slo: str) -> tuple[float, float]:
    rows = replay.rows(slo)
    return sum(row.good for row in rows), sum(row.total for row in rows)


def test_a_checkpoint_that_failed_is_bad_once_however_many_nodes_report_it() -> None:
    story = Story().start("n1", num_nodes=2).start("n2").add("checkpoint_durable", step=100)
    for node, total in (("n1", 1), ("n1", 2), ("n2", 1), ("n2", 2)):
        story.after(1).add("checkpoint_failed", node, outcome="failed", total=total)
    story.add("checkpoint_failed", "n2", outcome="invalid", total=1)
    replay = Replay(story)
    assert slo_counts(replay, "checkpoint_success") == (1, 4)
    assert replay.totals[counted.CHECKPOINTS.name, "failed"] == 2


def test_a_restore_that_failed_is_a_bad_resume_in_each_attempt() -> None:
    story = Story().start(num_nodes=1).add("restore_failed", total=1)
    story.add("restore_failed", attempt=1, total=1).add("job_resumed", attempt=2, step=10)
    assert slo_counts(Replay(story), "resume_success") == (1, 3)


@pytest.mark.parametrize(("num_gpus", "waited", "is_good"), [(8, 900, 1), (8, 901, 0), (9, 901, 1)])
def test_a_wait_is_held_against_the_target_of_the_size(
    num_gpus: int, waited: int, is_good: float
) -> None:
    story = Story().add("job_submitted", node=None, num_gpus=num_gpus).after(waited)
    assert slo_counts(Replay(story.start()), "queue_wait") == (is_good, 1)


def test_a_job_that_names_no_size_has_no_target_of_its_wait() -> None:
    story = Story().add("job_submitted", node=None).after(9)
    assert slo_counts(Replay(story.start()), "queue_wait") == (0, 0)


@pytest.mark.parametrize(("after_checkpoint", "is_good"), [(1600, 1), (1601, 0)])
def test_a_preemption_may_cost_an_interval_and_ten_minutes(
    after_checkpoint: int, is_good: float
) -> None:
    story = Story().start(num_nodes=1, num_gpus=4)
    for step in (1, 2):
        story.after(1000).add("checkpoint_durable", step=step)
    replay = Replay(story.after(after_checkpoint).end("preempted"))
    assert slo_counts(replay, "preemption_loss") == (is_good, 1)
    # Nobody reports what was lost: the ledger knows it.
    assert replay.job.lost_gpu_seconds == 4 * after_checkpoint


def test_recovery_counts_when_it_ends_and_not_at_the_end_of_the_job() -> None:
    story = Story().start(num_nodes=1, num_gpus=4).after(50)
    story.add("attempt_ended", outcome="failed").after(10).add("attempt_started", attempt=1)
    assert slo_counts(Replay(story), "ettr") == (0, 40)
    later = Replay(story.after(1000).end(attempt=1))
    assert slo_counts(later, "ettr") == (0, 40)
    assert later.job.goodput == {"recovery": 40, "unknown": 4 * 1050}


def test_classes_that_users_invent_are_one_beyond_the_first_twenty() -> None:
    slo = {("c", f"class-{n:02}", "goodput", "1h"): (1.0, 2.0) for n in range(30)}
    samples = exposition.windows(slo, {}, ["c"])
    at = ("goodput", "1h", "total")
    classes = {labels[1] for name, labels in samples if name == counted.SLO_EVENTS.name}
    assert len(classes) == exposition.MAX_CLASSES + 2
    assert samples[counted.SLO_EVENTS.name, ("c", "other", *at)] == 20.0
    assert samples[counted.SLO_EVENTS.name, ("c", "class-00", *at)] == 2.0
