"""Resumes, checkpoints and goodput follow from the pages of an attempt."""

import time
from pathlib import Path
from typing import Any

import pytest

from lockstep_outcomes.progress.progress_events import (
    GOODPUT_SECONDS,
    Moments,
    ProgressEvents,
    goodput_fields,
    moments_of,
)
from lockstep_records.events.event import Event, check_event
from lockstep_records.files.jobs import page_path, pages_of
from lockstep_records.page.layout import PHASES, SLOT
from lockstep_records.page.writer import PageWriter, RankIdentity


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


def test_communication_beyond_that_of_the_last_replica_is_waiting_for_it(memory: Path) -> None:
    ranks = Ranks(memory, num_ranks=3)
    for rank, seconds in enumerate((5.0, 2.0, 4.0)):
        ranks.spend(rank, sync=seconds)
    pages = pages_of(ranks.folder)
    spent = goodput_fields(pages, Moments(), time.time(), time.monotonic_ns())["rank_seconds"]
    assert spent["straggler_wait"] == pytest.approx(5.0, abs=0.2)
    assert spent["communication"] == pytest.approx(6.0, abs=0.2)


def test_who_exchanges_parameters_with_a_server_waits_for_no_replica(memory: Path) -> None:
    ranks = Ranks(memory, num_ranks=3)
    for rank, seconds in enumerate((5.0, 2.0, 4.0)):
        ranks.spend(rank, sync=seconds)
    pages = pages_of(ranks.folder)
    for page in pages:
        page.periodic["independent_rounds"] = 7
    spent = goodput_fields(pages, Moments(), time.time(), time.monotonic_ns())["rank_seconds"]
    assert "straggler_wait" not in spent
    assert spent["communication"] == pytest.approx(11.0, abs=0.2)


def test_waiting_in_a_hang_that_a_time_out_ends_is_the_hangs(memory: Path) -> None:
    ranks = Ranks(memory)
    ranks.spend(0, forward=1.0, sync=25.0)
    ranks.spend(1, forward=1.0, sync=5.0)
    ranks.pages[0].heartbeat(time.monotonic_ns(), PHASES.index("failed"))
    pages = pages_of(ranks.folder)
    now = time.time()
    for begin, hang_seconds in ((None, 0.0), (now - 20.0, 20.0)):
        fields = goodput_fields(pages, Moments(hang_begin=begin), now, time.monotonic_ns())
        spent = fields["rank_seconds"]
        assert spent.get("hang", 0.0) == pytest.approx(hang_seconds, abs=5.0)
        assert spent.get("straggler_wait", 0.0) == pytest.approx(20.0 - hang_seconds, abs=5.0)


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
