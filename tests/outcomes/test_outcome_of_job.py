"""The evidence of an attempt is gathered from its folder: events, pages, last output, errors."""

from pathlib import Path
from typing import Any

from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import evidence_of
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import job_folder, page_path
from lockstep_records.files.last_output import OutputRing, RankError, write_error
from lockstep_records.page.writer import PageWriter, RankIdentity


def end_rank(root: Path, rank: int, exit_code: int, *, first: bool = False) -> None:
    fields: dict[str, Any] = {"rank": rank, "exit_code": exit_code, "first": first}
    event = Event(kind="rank_ended", job_id="job", attempt=0, fields=fields)
    append_event(job_folder(root, "job"), event)


def start_rank(root: Path, rank: int) -> PageWriter:
    path = page_path(root, "job", 0, rank)
    return PageWriter(path, RankIdentity(job_id="job", rank=rank, world_size=2), rows=4)


def write_output(root: Path, rank: int, text: str) -> None:
    ring = OutputRing(page_path(root, "job", 0, rank))
    ring.write(text.encode())
    ring.close()


def test_the_last_output_of_the_rank_that_failed_names_the_cause(memory: Path) -> None:
    for rank in range(2):
        start_rank(memory, rank)
    write_output(memory, 0, "RuntimeError: Connection closed by peer\n")
    write_output(memory, 1, "step 7\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n")
    end_rank(memory, 1, 1, first=True)
    end_rank(memory, 0, -15)
    evidence = evidence_of(job_folder(memory, "job"), 0)
    judged = classify(evidence)
    assert (judged.cause, judged.cause_ranks, judged.failure_class) == ("gpu_oom", (1,), "user")
    assert evidence.world_size == 2


def test_the_error_beside_a_page_names_the_cause_without_a_launcher(memory: Path) -> None:
    pages = [start_rank(memory, rank) for rank in range(2)]
    error = RankError(
        source="except_hook", type="KeyError", message="'tokens'", file="a.py", line=3
    )
    write_error(pages[1].path, error)
    judged = classify(evidence_of(job_folder(memory, "job"), 0))
    assert (judged.outcome, judged.cause_ranks) == ("failed", (1,))
    assert "KeyError: 'tokens'" in judged.reason


def test_a_job_of_which_nothing_is_left_is_unknown(memory: Path) -> None:
    job_folder(memory, "job").mkdir(parents=True)
    assert classify(evidence_of(job_folder(memory, "job"), 0)).outcome == "unknown"
