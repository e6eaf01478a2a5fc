"""What a job of Slurm held and waited for, whatever its rows are and whenever they were read."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep_ledger.importers.sacct import read_sacct
from lockstep_ledger.store.queries import find_job, job_document
from lockstep_outcomes.slurm import Partition

from ..merge.replay import Replay
from ..stories import Story

TABLES: dict[str, Any] = yaml.load(
    Path(__file__).with_name("slurm_sizes.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
)


def read(table: str) -> list[dict[str, Any]]:
    lines = [TABLES["columns"], *table.splitlines()]
    nodes = {"h100": Partition(8, 64, is_exclusive=False, shares=(("gpu", 8), ("shard", 32)))}
    return [event.document() for event in read_sacct(lines, "east", partitions=nodes)]


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("case", TABLES["cases"])
def test_rows_of_slurm_are_the_intervals_they_are(case: str, is_reversed: bool) -> None:
    polls = [read(table) for table in TABLES["cases"][case]["polls"]]
    for job_id, expected in TABLES["cases"][case]["jobs"].items():
        events = [e for poll in (polls[::-1] if is_reversed else polls) for e in poll]
        own = [event for event in events if event["job_id"] == job_id]
        now = max(event["time"] for event in own)
        replay = Replay(Story(job_id=job_id, now=now, events=own))
        with replay.engine.connect() as connection:
            job = job_document(connection, find_job(connection, job_id, "east")[0])
        names = ("runs", "requeues", "gpu_seconds", "queue_wait_seconds", "held_seconds", "outcome")
        assert [job[name] for name in names] == expected[:6]
        numbers = [
            [held, other] for _, name, other, held in job["disagreements"] if name != "exit_code"
        ]
        assert numbers == expected[6:]
