"""Resumes, checkpoints and goodput follow from the pages of an attempt."""

import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from simulated_device import SimulatedRank

from lockstep.hangs.node_watch import launched_by_dump
from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import evidence_of
from lockstep_outcomes.first_line import first_line
from lockstep_outcomes.progress.hangs import Hang
from lockstep_outcomes.progress.missing import Launched, RankState, find_missing
from lockstep_outcomes.progress.progress_events import (
    GOODPUT_SECONDS,
    Moments,
    ProgressEvents,
    goodput_fields,
    hang_fields,
    hangs_of,
    moments_of,
    standstill_words,
)
from lockstep_records.events.event import Event, append_event, check_event
from lockstep_records.files.jobs import job_folder, page_path, pages_of
from lockstep_records.page.layout import PHASES, SLOT
from lockstep_records.page.writer import PageWriter, RankIdentity

from .hang_cases import HANGS, LONG_STEPS, Case, Job


class Ranks:
    """The pages of an attempt of one node, whose totals a test sets."""

    def __init__(self, root: Path, num_ranks: int = 2, attempt: int = 0, **mesh: int) -> None:
        self.attempt = attempt
        self.pages = []
        for rank in range(num_ranks):
            axes = {"dp": rank} | mesh
            identity = RankIdentity(
                job_id="job", rank=rank, world_size=num_ranks, attempt=attempt,
                mesh=tuple(axes.items()),
            )  # fmt: skip
            path = page_path(root, "job", attempt, rank)
            self.pages.append(PageWriter(path, identity, rows=4))
        self.folder = self.pages[0].path.parent

    def spend(self, rank: int, **seconds: float) -> None:
        page = self.pages[rank]
        for phase, value in seconds.items():
            page.floats[SLOT.word("phase_seconds") + PHASES.index(phase)] += value
        page.commit(time.monotonic_ns())

    def saved(self, rank: int, step: int) -> None:
        page = self.pages[rank]
        page.now.know("checkpoint_step", step)
        page.now.know("checkpoint_wall_ns", time.time_ns() - 10**9)
        page.periodic.know("write_step", step)
        page.periodic.know("write_seconds", 1.5)
        page.periodic.commit(time.monotonic_ns())
        page.commit(time.monotonic_ns())

    def step(self, rank: int, step: int) -> None:
        self.pages[rank].now.know("step", step)
        self.pages[rank].commit(time.monotonic_ns())

    def restored(self, step: int, passed_over: int = 0) -> None:
        for page in self.pages:
            page.periodic.know("restored_step", step)
            page.periodic.count("passed_over", number=passed_over)
            page.periodic.commit(time.monotonic_ns())

    def poll(self, progress: ProgressEvents, **options: Any) -> list[Event]:
        events = progress.poll(pages_of(self.folder), Moments(), **options)
        for event in events:
            assert check_event(event.document(), now_seconds=time.time()) == event
        return events


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def test_a_checkpoint_is_an_event_once_every_rank_has_it(memory: Path) -> None:
    ranks, progress = Ranks(memory), ProgressEvents("job")
    assert kinds(ranks.poll(progress)) == ["goodput"]
    ranks.saved(0, 100)
    assert ranks.poll(progress) == []
    ranks.saved(1, 100)
    [event] = ranks.poll(progress)
    assert (event.kind, event.fields["step"], event.fields["seconds"]) == (
        "checkpoint_durable", 100, 1.5,
    )  # fmt: skip
    assert event.time < time.time() - 0.5
    assert ranks.poll(progress) == []
    ranks.saved(0, 200)
    ranks.saved(1, 200)
    assert [event.fields["step"] for event in ranks.poll(progress)] == [200]


def test_a_failed_checkpoint_is_an_event_once_with_the_number_so_far(memory: Path) -> None:
    ranks, progress = Ranks(memory), ProgressEvents("job")
    assert kinds(ranks.poll(progress)) == ["goodput"]
    for page in ranks.pages:
        page.now.count("checkpoints", "failed")
        page.periodic.count("checkpoints_invalid")
        page.periodic.count("restores", "failed")
        page.periodic.commit(time.monotonic_ns())
        page.commit(time.monotonic_ns())
    events = ranks.poll(progress)
    assert [(event.kind, event.fields) for event in events] == [
        ("checkpoint_failed", {"total": 1, "outcome": "failed"}),
        ("checkpoint_failed", {"total": 1, "outcome": "invalid"}),
        ("restore_failed", {"total": 1}),
    ]
    assert ranks.poll(progress) == []


def test_a_resume_says_from_where_and_how_many_steps_are_lost(memory: Path) -> None:
    first = Ranks(memory)
    first.step(0, 149)
    first.step(1, 150)
    second = Ranks(memory, attempt=1)
    progress = ProgressEvents("job")
    second.restored(100, passed_over=1)
    resumed, goodput = second.poll(progress)
    assert (resumed.kind, resumed.attempt, goodput.kind) == ("job_resumed", 1, "goodput")
    assert resumed.fields["steps_lost"] in {49, 50}
    assert (resumed.fields["step"], resumed.fields["fallback"]) == (100, True)
    assert kinds(second.poll(progress)) == []


def test_goodput_is_reported_once_a_minute_and_at_the_end(memory: Path) -> None:
    now = [1e9]
    ranks, progress = Ranks(memory), ProgressEvents("job", clock=lambda: now[0])
    counts = []
    for _ in range(180):
        counts.append(len(progress.poll(pages_of(ranks.folder), Moments())))
        now[0] += 1
    assert sum(counts) == 180 / GOODPUT_SECONDS
    assert kinds(progress.poll(pages_of(ranks.folder), Moments(), is_last=True)) == ["goodput"]
    assert progress.poll([], Moments(), is_last=True) == []


def test_the_states_of_an_attempt_sum_to_its_time_on_all_gpus(memory: Path) -> None:
    ranks = Ranks(memory)
    for rank in range(2):
        ranks.spend(rank, forward=2.0, sync=1.0)
    # Ranks end after their last heartbeat, and the attempt after them.
    now, monotonic_ns = time.time() + 2.0, time.monotonic_ns() + 2 * 10**9
    ends = {0: now - 1.0, 1: now - 0.5}
    # The ranks are young: their clocks are set back, as if they had begun ten seconds ago.
    pages = pages_of(ranks.folder)
    for page in pages:
        page.identity["start_wall_ns"] -= 10 * 10**9
        page.identity["start_monotonic_ns"] -= 10 * 10**9
    begin = now - 10_012.0  # before the process of this test began
    moments = Moments(begin=begin, ends=ends, over=now, num_gpus=4)
    fields = goodput_fields(pages, moments, now, monotonic_ns)
    total = sum(fields["rank_seconds"].values())
    assert total == pytest.approx(4 * 10_012.0, abs=0.1)
    assert fields["num_ranks"] == 4
    assert fields["rank_seconds"]["idle"] == pytest.approx(2 * 10_012.0, abs=0.01)
    # They are still in their first phase between the last heartbeat and their end.
    startup = 2 * 10_000.0 + 1.0 + 1.5
    assert fields["rank_seconds"]["startup"] == pytest.approx(startup, abs=0.1)
    assert fields["rank_seconds"]["other"] == pytest.approx(1.5, abs=0.01)
    assert fields["rank_seconds"]["productive"] == 4.0


@pytest.mark.parametrize(("rounds", "waited"), [(0, 5.0), (7, 0.0)])
def test_communication_beyond_that_of_the_last_replica_is_waiting_for_it_but_not_for_a_server(
    memory: Path, rounds: int, waited: float
) -> None:
    ranks = Ranks(memory, num_ranks=3)
    for rank, seconds in enumerate((5.0, 2.0, 4.0)):
        ranks.spend(rank, sync=seconds)
    pages = pages_of(ranks.folder)
    for page in pages:
        page.periodic["independent_rounds"] = rounds
    spent = goodput_fields(pages, Moments(), time.time(), time.monotonic_ns())["rank_seconds"]
    assert spent.get("straggler_wait", 0.0) == pytest.approx(waited, abs=0.2)
    assert spent["communication"] == pytest.approx(11.0 - waited, abs=0.2)


@pytest.mark.parametrize(("stood", "phase"), [({}, "sync"), ({0: "backward"}, "backward")])
def test_a_hang_that_was_ended_takes_the_time_in_which_the_rank_stood(
    memory: Path, stood: dict[int, str], phase: str
) -> None:
    ranks = Ranks(memory)
    ranks.spend(0, **{"forward": 1.0, "sync": 5.0, phase: 25.0})
    ranks.spend(1, forward=1.0, sync=5.0)
    ranks.pages[0].heartbeat(time.monotonic_ns(), PHASES.index("failed"))
    pages = pages_of(ranks.folder)
    now = time.time()
    for begin, hang_seconds in ((None, 0.0), (now - 20.0, 20.0)):
        moments = Moments(hang_begin=begin, stood=stood)
        spent = goodput_fields(pages, moments, now, time.monotonic_ns())["rank_seconds"]
        assert spent.get("hang", 0.0) == pytest.approx(hang_seconds, abs=5.0)
        of_phase = spent.get("productive" if stood else "straggler_wait", 0.0)
        assert of_phase == pytest.approx(20.0 - hang_seconds, abs=8.0)


def test_stages_of_a_pipeline_wait_for_each_other_by_nature(memory: Path) -> None:
    first = Ranks(memory, num_ranks=1, pp=0)
    first.spend(0, sync=5.0)
    identity = RankIdentity(job_id="job", rank=1, world_size=2, mesh=(("dp", 0), ("pp", 1)))
    other = PageWriter(page_path(memory, "job", 0, 1), identity, rows=4)
    other.commit(time.monotonic_ns())
    pages = pages_of(first.folder)
    spent = goodput_fields(pages, Moments(), time.time(), time.monotonic_ns())["rank_seconds"]
    assert "straggler_wait" not in spent


def event(kind: str, moment: float, attempt: int = 0, **fields: Any) -> Event:
    return Event(kind=kind, job_id="job", attempt=attempt, time=moment, fields=fields)


def test_the_first_attempt_begins_with_its_launcher_and_later_ones_with_their_ranks() -> None:
    events = [
        event("job_started", 10), event("attempt_started", 12, num_gpus=8),
        event("rank_ended", 20, rank=0), event("attempt_started", 25, 1, num_gpus=8),
        event("rank_ended", 31, 1, rank=0), event("rank_ended", 32, 1, rank="x"),
    ]  # fmt: skip
    assert moments_of(events, 0) == Moments(begin=10, ends={0: 20}, num_gpus=8)
    assert moments_of(events, 1, over=33) == Moments(begin=25, ends={0: 31}, over=33, num_gpus=8)
    assert moments_of(events[:1], 0) == Moments(begin=10, ends={})
    again = [*events, event("job_started", 50), event("attempt_started", 52, 2)]
    assert moments_of(again, 2).begin == 50


CLOSED = "RuntimeError: Connection closed by peer"


def standing(rank: int, phase: str, process: str, step: int | None = 19) -> dict[str, Any]:
    return {"rank": rank, "phase": phase, "step": step, "idle_seconds": 30.0, "process": process}


def hang_event(kind: str, time: float = 130.0, node: str = "n1", **fields: Any) -> Event:
    return Event(kind=kind, job_id="job", attempt=0, fields=fields, time=time, node=node)


STOPPED: dict[str, Any] = {
    "ranks": [standing(0, "sync", "S"), standing(1, "data", "T")],
    "missing": [1],
}


def test_a_hang_begins_with_the_last_progress_and_ends_by_the_word_of_its_node() -> None:
    hang, other = hang_event("hang", **STOPPED), hang_event("hang", node="n2", ranks=[], missing=[])
    ended = hang_event("hang_ended", 150.0, missing=[1], seconds=50.0)
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
    (hang,) = hangs_of([hang_event("hang", ranks=ranks, missing=missing)], 0)
    assert standstill_words(hang) == words


def test_events_of_any_shape_are_read() -> None:
    strange = [{"rank": "1"}, 7, {"rank": True}, standing(0, "sync", "S") | {"idle_seconds": "x"}]
    (hang,) = hangs_of([hang_event("hang", ranks=strange, missing=7)], 0)
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
    append_event(job, hang_event("hang", **STOPPED))
    append_event(job, hang_event("rank_ended", rank=0, exit_code=1, first=True, exception=CLOSED))
    append_event(job, hang_event("rank_ended", rank=1, exit_code=-9))
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
    append_event(job, hang_event("rank_ended", rank=0, exit_code=1, first=True, exception=CLOSED))
    bug = "ValueError: no label (/a/train.py:3, in step)"
    append_event(job, hang_event("rank_ended", 1e10, rank=1, exit_code=-15, exception=bug))
    judged = classify(evidence_of(job, 0))
    assert (judged.cause, judged.cause_ranks) == ("exception", (1,))
    assert first_line(judged.event_fields()) == (
        "The job failed: rank 1 raised ValueError: no label (train.py:3, in step), after step 19;"
        " rank 0 followed."
    )


run = cache(Job.run)  # blind cases are jobs of others


def state_of(rank: SimulatedRank, case: Case) -> RankState:
    """What a page tells of a rank, and with a Flight Recorder the operations."""
    launched = {
        group: Launched(number, operation, rank.oldest(group))
        for group, (number, operation) in rank.counts.items()
    }
    if not case.recorded:
        launched = {group: Launched(each.number) for group, each in launched.items()}
    return RankState(
        rank=rank.rank,
        phase=rank.phase,
        step=rank.step if rank.phase == "other" else rank.step - 1,
        device=None if case.blind else "pending" if rank.device_pending else "passed",
        launched={} if case.blind else launched,
    )


@pytest.mark.parametrize("case", [*HANGS, *LONG_STEPS], ids=str)
def test_the_rank_that_the_others_wait_for_is_named_live_and_from_its_event(case: Case) -> None:
    ranks = run(case.job)
    states = tuple(state_of(rank, case) for at, rank in ranks.items() if at not in case.without)
    num_unseen = case.job.ranks - len(states)
    hang = Hang(limit_seconds=120.0, ranks=states, states=states, num_unseen=num_unseen)
    assert (hang.missing.ranks, hang.missing.kind) == (case.ranks, case.kind), hang.missing.why
    fields = json.loads(json.dumps(hang_fields(hang)))
    event = Event(kind="hang", job_id="job", attempt=0, fields=fields, time=1e9, node="n1")
    (record,) = hangs_of([event], 0)
    assert record.found == hang.missing


def test_nodes_that_hang_together_are_judged_by_the_ranks_of_all() -> None:
    """Each node sees a rank behind its others; only one of them is behind all."""
    steps = {"n1": {0: 41, 1: 42}, "n2": {2: 39, 3: 42}}
    events = []
    for node, by_rank in steps.items():
        states = tuple(RankState(rank=r, phase="forward", step=s) for r, s in by_rank.items())
        hang = Hang(limit_seconds=120.0, ranks=states, states=states, num_unseen=2)
        fields = json.loads(json.dumps(hang_fields(hang)))
        events.append(
            Event(kind="hang", job_id="job", attempt=0, fields=fields, time=1e9, node=node)
        )
    assert [record.missing for record in hangs_of(events, 0)] == [(2,), (2,)]


def entry(number: int, operation: str, **fields: Any) -> dict[str, Any]:
    names = {"process_group": ["0", "default_pg"], "profiling_name": f"nccl:{operation}"}
    return names | {"collective_seq_id": number, "state": "scheduled"} | fields


@pytest.mark.parametrize(
    ("entries", "launched"),
    [
        ([entry(7, "all_reduce", state="completed")], {"0": Launched(7, "all_reduce")}),
        (
            [entry(9, "barrier"), entry(8, "all_reduce"), entry(7, "all_gather", retired=True)],
            {"0": Launched(9, "barrier", (8, "all_reduce"))},
        ),
        ([entry(7, "send 0->1", is_p2p=True), {"process_group": 3}, 5], {}),
        (None, {}),
    ],
)
def test_a_dump_says_how_many_collectives_a_rank_has_launched(
    entries: list[Any] | None, launched: dict[str, Launched]
) -> None:
    assert launched_by_dump(json.dumps({"entries": entries}).encode()) == launched
    assert launched_by_dump(b"{") == {}


STEP = ["broadcast", "all_reduce", "all_reduce"]
EPOCH = [*STEP * 4, "barrier"]


@pytest.mark.parametrize(
    ("before", "called", "missing"),
    [
        (STEP * 20, "broadcast barrier", (1,)),
        (STEP * 20, "all_gather broadcast", (0,)),
        ([*EPOCH * 3, *STEP * 2], "barrier broadcast", (0,)),
        ([*STEP * 20, "barrier"], "broadcast barrier", (1,)),  # its next epoch has no step
        (STEP * 20, "all_reduce barrier scatter", (1, 2)),
        (STEP * 20, "broadcast barrier barrier", (0,)),  # most know better than before
        (STEP * 20, "all_reduce broadcast", (0, 1)),  # one of them left out another's call
        (STEP * 4, "broadcast barrier", (0, 1)),
        ([], "broadcast barrier", (0, 1)),
    ],
)
def test_of_as_many_ranks_in_unlike_collectives_who_calls_what_no_step_has_is_named(
    before: list[str], called: str, missing: tuple[int, ...]
) -> None:
    states = []
    for rank, operation in enumerate(called.split()):
        entries = [entry(n, each, retired=True) for n, each in enumerate(before, start=1)]
        entries.append(entry(len(before) + 1, operation))
        launched = launched_by_dump(json.dumps({"entries": entries}).encode())
        states.append(RankState(rank=rank, phase="sync", step=19, launched=launched))
    hang = Hang(limit_seconds=9.0, ranks=tuple(states), states=tuple(states), num_unseen=0)
    fields = json.loads(json.dumps(hang_fields(hang)))
    (record,) = hangs_of([Event(kind="hang", job_id="j", attempt=0, fields=fields)], 0)
    assert (record.missing, record.found) == (missing, hang.missing), hang.missing.why


@pytest.mark.parametrize(
    ("phases", "steps", "missing"),
    [
        ("done sync sync sync", (9, 9, 9, 9), (0,)),
        ("done done sync done", (9, 9, 9, 9), (0, 1, 3)),
        ("done sync backward sync", (5, 9, 9, 9), (0,)),
        ("done other", (9, 9), (1,)),  # saves its model after the loop
        ("done sync data sync", (9, 9, 9, 9), (2,)),
        ("done sync sync", (9, 9, 8), (2,)),
    ],
)
def test_who_has_finished_is_waited_for_by_who_is_in_another_step(
    phases: str, steps: tuple[int, ...], missing: tuple[int, ...]
) -> None:
    states = [
        RankState(rank=rank, phase=phase, step=step)
        for rank, (phase, step) in enumerate(zip(phases.split(), steps, strict=True))
    ]
    assert find_missing(states, len(states)).ranks == missing
