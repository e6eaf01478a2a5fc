"""What the events of a job count for each objective, and by which class they are served."""

import pytest

from lockstep_catalogue import ledger as counted
from lockstep_catalogue.vocabulary import SYNTHETIC_CLASS
from lockstep_ledger.web.app import MAX_CLASSES, windows

from ..stories import Story
from .replay import Replay


def slo_counts(replay: Replay, slo: str) -> tuple[float, float]:
    rows = replay.rows(slo)
    return sum(row.good for row in rows), sum(row.total for row in rows)


@pytest.mark.parametrize(("num_gpus", "waited", "is_good"), [(8, 900, 1), (8, 901, 0), (9, 901, 1)])
def test_waits_are_held_against_targets_of_sizes(
    num_gpus: int, waited: int, is_good: float
) -> None:
    story = Story().add("job_submitted", node=None, num_gpus=num_gpus).after(waited)
    assert slo_counts(Replay(story.start()), "queue_wait") == (is_good, 1)


def test_a_job_that_names_no_size_has_no_target_of_its_wait() -> None:
    story = Story().add("job_submitted", node=None).after(9)
    assert slo_counts(Replay(story.start()), "queue_wait") == (0, 0)


@pytest.mark.parametrize(("after_checkpoint", "is_good"), [(1600, 1), (1601, 0)])
def test_a_preemption_costs_an_interval_and_ten_minutes(
    after_checkpoint: int, is_good: float
) -> None:
    story = Story().start(num_nodes=1, num_gpus=4)
    for step in (1, 2):
        story.after(1000).add("checkpoint_durable", step=step)
    replay = Replay(story.after(after_checkpoint).end("preempted"))
    assert slo_counts(replay, "preemption_loss") == (is_good, 1)
    # Nobody reports what was lost: the ledger knows it.
    assert replay.job.lost_gpu_seconds == 4 * after_checkpoint


def test_classes_that_users_invent_are_one_beyond_the_first_twenty() -> None:
    slo = {("c", f"class-{n:02}", "goodput", "1h"): (1.0, 2.0) for n in range(30)}
    samples = windows(slo, {}, ["c"])
    at = ("goodput", "1h", "total")
    classes = {labels[1] for name, labels in samples if name == counted.SLO_EVENTS.name}
    assert len(classes) == MAX_CLASSES + 2
    assert samples[counted.SLO_EVENTS.name, ("c", "other", *at)] == 20.0
    assert samples[counted.SLO_EVENTS.name, ("c", "class-00", *at)] == 2.0


@pytest.mark.parametrize(("job_class", "number"), [("debug", 1), (SYNTHETIC_CLASS, 0)])
def test_no_objective_counts_a_job_that_only_proves_the_way_to_the_pager(
    job_class: str, number: int
) -> None:
    replay = Replay(
        Story().start(job_class=job_class).after(60).end("failed", failure_class="infra")
    )
    assert replay.job.outcome == "failed"
    assert slo_counts(replay, "job_success") == (0, number)
