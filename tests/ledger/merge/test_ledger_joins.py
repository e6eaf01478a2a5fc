"""Ids that share an alias are one job, within one owner and one scheduler."""

from dataclasses import replace
from typing import Any

from lockstep_ledger.store import queries
from lockstep_ledger.store.transaction import Submission

from ..stories import BEGIN, Story, checked
from .replay import Replay

ALIAS = ["slurm:alpha:4242"]


def scheduler_story(**fields: Any) -> Story:
    story = Story(job_id="4242").add("job_submitted", None, queue="gpu", aliases=ALIAS, **fields)
    return story.after(10).add("job_started", None, num_gpus=8, num_nodes=1, aliases=ALIAS)


def launcher_story() -> Story:
    return Story(job_id="run-7", now=BEGIN + 11).start(num_nodes=1, num_gpus=8, aliases=ALIAS)


def test_a_user_that_the_scheduler_names_has_the_job_before_all_others() -> None:
    """Ids of a scheduler can be guessed; who guesses one first gets nothing by it."""
    thief = Story(job_id="4242", now=BEGIN + 5).add("node_event", sign="xid")
    theft = [replace(event, owner=1002) for event in checked(thief)]
    own = [replace(event, owner=1001) for event in checked(launcher_story())]
    replay = Replay(scheduler_story(uid=1001))
    refused, taken = Submission(theft), Submission(own)
    replay.writer.write([refused])
    replay.writer.write([taken])
    assert [letter.refusal for letter in refused.refused] == ["owner"]
    assert taken.stored == 2
    replay.key = ("east", "4242")
    assert replay.job.ids == ["4242", "run-7", "slurm:alpha:4242"]
    with replay.engine.connect() as connection:
        for job_id in replay.job.ids:
            [row] = queries.find_job(connection, job_id, "east")
            assert row.job_id == "4242"
