"""Hangs by the launchers' events, the words for them, and whether one lasted until the end."""

from pathlib import Path
from typing import Any

import pytest

from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import evidence_of
from lockstep_outcomes.first_line import first_line
from lockstep_outcomes.progress.progress_events import hangs_of, standstill_words
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import job_folder, page_path
from lockstep_records.page.layout import PHASES, SLOT
from lockstep_records.page.writer import PageWriter, RankIdentity

CLOSED = "RuntimeError: Connection closed by peer"


def standing(rank: int, phase: str, process: str, step: int | None = 19) -> dict[str, Any]:
    return {"rank": rank, "phase": phase, "step": step, "idle_seconds": 30.0, "process": process}


def event(kind: str, time: float = 130.0, node: str = "n1", **fields: Any) -> Event:
    return Event(kind=kind, job_id="job", attempt=0, fields=fields, time=time, node=node)


STOPPED: dict[str, Any] = {
    "ranks": [standing(0, "sync", "S"), standing(1, "data", "T")],
    "missing": [1],
}


def test_a_hang_begins_with_the_last_progress_and_ends_by_the_word_of_its_node() -> None:
    hang, other = event("hang", **STOPPED), event("hang", node="n2", ranks=[], missing=[])
    ended = event("hang_ended", 150.0, missing=[1], seconds=50.0)
    first, second = hangs_of([hang, other, ended], 0)
    assert (first.begin, first.end, first.missing, first.step) == (100.0, 150.0, (1,), 19)
    assert second.end is None
    assert hangs_of([hang], 1) == []


@pytest.mark.parametrize(
    ("ranks", "missing", "words"),
    [
        (STOPPED["ranks"], [1],
         "rank 1 stood still in data after step 19, stopped by a signal; rank 0 waited"),
        ([standing(0, "sync", "S"), standing(1, "sync", "S")], [],
         "no rank made progress after step 19: no rank stands apart, all in sync"),
        ([standing(0, "sync", "S", None)], [3],
         "no rank made progress before its first step: rank 3 did not come, all in sync"),
        ([standing(0, "checkpoint", "D")], [0],
         "rank 0 stood still in checkpoint after step 19, blocked in the kernel"),
    ],
)  # fmt: skip
def test_a_standstill_is_told_in_words(
    ranks: list[dict[str, Any]], missing: list[int], words: str
) -> None:
    (hang,) = hangs_of([event("hang", ranks=ranks, missing=missing)], 0)
    assert standstill_words(hang) == words


def test_events_of_any_shape_are_read() -> None:
    strange = [{"rank": "1"}, 7, {"rank": True}, standing(0, "sync", "S") | {"idle_seconds": "x"}]
    (hang,) = hangs_of([event("hang", ranks=strange, missing=7)], 0)
    assert [rank.rank for rank in hang.ranks] == [0]
    assert hang.begin == 130.0


def write_page(root: Path, rank: int, step: int, phase: str) -> None:
    path = page_path(root, "job", 0, rank)
    page = PageWriter(path, RankIdentity(job_id="job", rank=rank, world_size=2), rows=4)
    page.signed[SLOT.word("step")] = step
    page.words[SLOT.word("present")] |= SLOT.presence["step"]
    page.heartbeat(1, PHASES.index(phase))
    page.commit(1)
    page.close()


@pytest.mark.parametrize(("last_step", "cause"), [(19, "hang"), (25, "peer_failure")])
def test_a_hang_lasted_where_no_step_followed_though_a_time_out_closed_the_pages(
    memory: Path, last_step: int, cause: str
) -> None:
    write_page(memory, 0, last_step, "failed")
    write_page(memory, 1, last_step, "data")
    job = job_folder(memory, "job")
    append_event(job, event("hang", **STOPPED))
    append_event(job, event("rank_ended", rank=0, exit_code=1, first=True, exception=CLOSED))
    append_event(job, event("rank_ended", rank=1, exit_code=-9))
    judged = classify(evidence_of(job, 0))
    assert judged.cause == cause
    assert judged.cause_ranks == ((1,) if cause == "hang" else ())
    if cause == "hang":
        assert first_line(judged.event_fields()) == (
            "The job hung: rank 1 stood still in data after step 19, stopped by a signal;"
            " rank 0 waited."
        )


def test_a_rank_that_stood_after_its_exception_did_not_survive_it(memory: Path) -> None:
    write_page(memory, 0, 19, "failed")
    write_page(memory, 1, 19, "data")
    job = job_folder(memory, "job")
    append_event(job, event("rank_ended", rank=0, exit_code=1, first=True, exception=CLOSED))
    bug = "ValueError: no label (/a/train.py:3, in step)"
    append_event(job, event("rank_ended", 1e10, rank=1, exit_code=-15, exception=bug))
    judged = classify(evidence_of(job, 0))
    assert (judged.cause, judged.cause_ranks) == ("exception", (1,))
    assert first_line(judged.event_fields()) == (
        "The job failed: rank 1 raised ValueError: no label (train.py:3, in step), after step 19;"
        " rank 0 followed."
    )
