"""Rank pages, written by the real writer, as the agent serves them."""

import math
import os
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lockstep_agent.collector import AnyReading, HistogramReading, Reading
from lockstep_agent.collectors.jobs.ranks import Ranks
from lockstep_agent.jobs.page_store import PageStore
from lockstep_catalogue import Kind, agent, training
from lockstep_catalogue.agent import JOBS_SKIPPED
from lockstep_catalogue.labels import REASON, STATE, STEP_PHASES
from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import job_folder
from lockstep_records.page.layout import PERIODIC, PERIODIC_OFFSETS

from ..live_page import ALL_REDUCE_BYTES, STEP_SECONDS, TOKENS_A_STEP, LivePage
from ..values import Values

JOB = ("east", "job")
NODE = (*JOB, "node-7")
DEAD_PID = 0x7FFFFFFF


class RanksFixture:
    """The collector of ranks with a clock that a test sets forward."""

    def __init__(self, root: Path, linger_seconds: float = 60.0) -> None:
        self.now = time.time()
        pages = PageStore(root, Path("/proc"), cluster="east")
        self._ranks = Ranks(pages, "node-7", linger_seconds, lambda: self.now)

    def readings(self) -> list[AnyReading]:
        return list(self._ranks.collect())

    def values(self) -> Values:
        return flat(self.readings())


def flat(readings: Iterable[AnyReading]) -> Values:
    values: Values = {}
    for reading in readings:
        if isinstance(reading, Reading):
            values[reading.metric, reading.labels] = reading.value
        else:
            values[reading.metric, (*reading.labels, "sum")] = reading.sum
            for bucket, count in enumerate(reading.counts):
                values[reading.metric, (*reading.labels, str(bucket))] = count
    return values


def counters(values: Values) -> Values:
    return {
        key: value
        for key, value in values.items()
        if key[0].kind is not Kind.GAUGE and key[0] is not JOBS_SKIPPED
    }


def states(values: Values) -> dict[str, float]:
    counted = {state: values[training.RANKS, (*NODE, state)] for state in STATE.values}
    return {state: count for state, count in counted.items() if count}


def finish(root: Path, seconds: float) -> None:
    event = Event(kind="job_finished", job_id="job", attempt=0, time=seconds)
    append_event(job_folder(root, "job"), event)


def test_a_rank_has_twelve_series_with_the_values_that_it_wrote(root: Path) -> None:
    page = LivePage(root, rank=3)
    page.step(41)
    page.phase("sync")
    values = RanksFixture(root).values()
    of_rank = [labels for metric, labels in values if metric in training.RANK_METRICS]
    assert len(of_rank) == 12
    rank = (*JOB, "3")
    assert values[training.STEPS, rank] == 1
    assert values[training.RANK_WAITING, rank] == 1
    assert values[training.LAST_PROGRESS, rank] == pytest.approx(time.time(), abs=5)
    for phase in STEP_PHASES:
        assert values[training.PHASE_SECONDS, (*rank, phase)] == STEP_SECONDS.get(phase, 0)
    info = (*rank, "speech", "node-7", "3", "4", "0", *([""] * 4), "host", "3", *([""] * 5))
    assert values[training.RANK_INFO, info] == 1


def test_a_clock_being_set_makes_no_rank_stand(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LivePage(root, rank=3).step(41)
    ahead_ns = time.time_ns() + 3600 * 10**9
    monkeypatch.setattr("lockstep_agent.jobs.readings.time.time_ns", lambda: ahead_ns)
    last = RanksFixture(root).values()[training.LAST_PROGRESS, (*JOB, "3")]
    assert last == pytest.approx(ahead_ns / 1e9, abs=5)


def test_the_ranks_of_a_node_are_added_up(root: Path) -> None:
    for rank in (1, 2):
        page = LivePage(root, rank=rank)
        page.step(7, loss=float(rank))
        page.step(7 + rank, loss=float(rank))
        page.set_optional("checkpoint_wall_ns", 1_700_000_000_000_000_000 + rank * 10**9)
        page.writer.count_checkpoint("ok")
        page.commit()
    ranks = RanksFixture(root)
    values = ranks.values()
    assert values[training.TOKENS, NODE] == 4 * TOKENS_A_STEP
    assert values[training.STEP, NODE] == 9
    assert values[training.LOSS, NODE] == 1.0
    assert values[training.CHECKPOINTS, (*NODE, "ok")] == 1
    assert values[training.CHECKPOINTS, (*NODE, "failed")] == 0
    assert values[training.LAST_CHECKPOINT, NODE] == 1_700_000_002
    assert values[training.COLLECTIVE_BYTES, (*NODE, "all_reduce")] == 4 * ALL_REDUCE_BYTES
    assert (training.COLLECTIVES, (*NODE, "broadcast")) not in values
    [histogram] = [r for r in ranks.readings() if r.metric is training.STEP_SECONDS]
    assert isinstance(histogram, HistogramReading)
    assert sum(histogram.counts) == 4
    assert histogram.sum == 4 * sum(STEP_SECONDS.values())


def test_ranks_that_see_the_same_tokens_count_once(root: Path) -> None:
    for rank in range(8):
        mesh = (("dp", rank // 4), ("pp", rank // 2 % 2), ("tp", rank % 2))
        page = LivePage(root, rank=rank, mesh=mesh, world_size=8)
        page.step(1)
        page.writer.periodic.know("flops_per_token", 10.0)
        page.writer.periodic.commit(1)
    values = RanksFixture(root).values()
    assert values[training.TOKENS, NODE] == 2 * TOKENS_A_STEP
    assert values[training.MODEL_FLOPS, NODE] == 2 * TOKENS_A_STEP * 10


def test_a_value_that_no_rank_has_written_is_absent_and_so_is_a_loss_of_nan(root: Path) -> None:
    page = LivePage(root)
    values = RanksFixture(root).values()
    for metric in (training.STEP, training.LOSS, training.GRADIENT_NORM, training.LAST_CHECKPOINT):
        assert (metric, NODE) not in values
    page.step(1, loss=math.nan)
    values = RanksFixture(root).values()
    assert (training.LOSS, NODE) not in values
    assert (values[training.STEP, NODE], values[JOBS_SKIPPED, ("ranks",)]) == (1, 0)


def test_states_come_from_the_phase_and_a_dead_process_is_gone(root: Path) -> None:
    pages = [LivePage(root, rank=rank) for rank in range(4)]
    for page, phase in zip(pages, ("backward", "checkpoint", "done", "sync"), strict=True):
        page.phase(phase)
    pages[3].replace_identity(pid=DEAD_PID)
    values = RanksFixture(root).values()
    assert states(values) == {"training": 1, "checkpoint": 1, "done": 1, "gone": 1}
    assert values[training.RANK_WAITING, (*JOB, "3")] == 0


def test_a_new_attempt_adds_to_the_counters_and_takes_over_the_gauges(root: Path) -> None:
    for rank in range(3):
        page = LivePage(root, rank=rank)
        page.step(10)
        page.replace_identity(pid=DEAD_PID)
    ranks = RanksFixture(root)
    assert states(ranks.values()) == {"gone": 3}
    LivePage(root, rank=0, attempt=1, world_size=2).step(8)
    LivePage(root, rank=1, attempt=1, world_size=2)
    values = ranks.values()
    assert values[training.STEPS, (*JOB, "0")] == 2
    assert values[training.STEPS, (*JOB, "2")] == 1
    assert values[training.STEP, NODE] == 8
    assert states(values) == {"init": 2}
    assert (training.LAST_PROGRESS, (*JOB, "2")) not in values


@pytest.mark.parametrize("seed", range(3))
def test_no_counter_ever_falls_whatever_happens_to_the_pages(root: Path, seed: int) -> None:
    draw, ranks = random.Random(seed), RanksFixture(root)
    pages: list[LivePage] = []
    alive: set[LivePage] = set()
    before: Values = {}
    for number in range(80):
        act = draw.choice(("begin", "step", "step", "damage", "truncate", "delete"))
        page = draw.choice(sorted(alive, key=pages.index)) if alive else None
        if act == "begin" or page is None:
            page = LivePage(root, rank=len(pages) % 3, attempt=len(pages) // 3)
            pages.append(page)
            alive.add(page)
        elif act == "step":
            page.step(number)
        elif act == "damage":
            page.damage_newest_slot()
        elif act == "truncate":
            page.truncate()
            alive.remove(page)
        else:
            page.path.unlink()
            alive.remove(page)
        after = counters(ranks.values())
        fallen = {key: (was, after.get(key)) for key, was in before.items() if after[key] < was}
        assert not fallen, act
        before = after


def test_the_periodic_counters_never_fall_when_their_newest_slot_is_damaged(root: Path) -> None:
    page, ranks = LivePage(root), RanksFixture(root)
    page.write_periodic()
    before = counters(ranks.values())
    page.damage_newest_slot(PERIODIC, PERIODIC_OFFSETS)
    assert counters(ranks.values()) == before
    assert before != counters(RanksFixture(root).values())  # the older slot has smaller counts


def test_a_page_that_was_created_anew_starts_from_its_own_values(root: Path) -> None:
    page, ranks = LivePage(root), RanksFixture(root)
    for number in range(5):
        page.step(number)
    assert ranks.values()[training.STEP, NODE] == 4
    page.path.unlink()
    LivePage(root).step(40)
    assert ranks.values()[training.STEP, NODE] == 40


def test_a_page_that_cannot_be_read_is_counted_and_the_others_go_on(root: Path) -> None:
    good = LivePage(root, rank=0)
    good.step(1)
    LivePage(root, rank=1).replace_identity(version=99)
    LivePage(root, rank=2).truncate()
    os.mkfifo(good.path.with_name("rank-00003.page"))
    values = RanksFixture(root).values()
    unreadable = {reason: values[agent.PAGES_UNREADABLE, (reason,)] for reason in REASON.values}
    assert unreadable == {"version": 1, "truncated": 1, "identity": 0, "checksum": 0, "io": 1}
    assert values[training.STEPS, (*JOB, "0")] == 1


def test_no_page_can_speak_for_another_job(root: Path) -> None:
    LivePage(root).step(1)
    other = LivePage(root, job_id="other")
    other.path.replace(other.path.parents[2] / "job" / "0" / "rank-00001.page")
    values = RanksFixture(root).values()
    assert {labels[1] for metric, labels in values if metric is training.STEPS} == {"job"}


def test_a_job_stays_for_its_linger_after_the_launcher_wrote_its_end(root: Path) -> None:
    LivePage(root).phase("done")
    ranks = RanksFixture(root)
    finish(root, ranks.now)
    ranks.now += 59
    assert counters(ranks.values())
    ranks.now += 2
    assert not counters(ranks.values())
    append_event(job_folder(root, "job"), Event(kind="job_started", job_id="job", attempt=1))
    LivePage(root, attempt=1).step(1)
    assert ranks.values()[training.STEPS, (*JOB, "0")] == 1


def test_ranks_that_fail_before_they_have_a_page_count_by_the_launchers_word(root: Path) -> None:
    ranks, folder = RanksFixture(root), job_folder(root, "job")
    failed = (training.RANKS, (*NODE, "failed"))

    def write(kind: str, **fields: Any) -> float | None:
        append_event(folder, Event(kind=kind, job_id="job", attempt=0, fields=fields))
        return ranks.values().get(failed)

    for outcome, num_failed in (("cancelled", None), ("failed", 2)):
        assert write("attempt_started") is None
        for rank, exit_code in enumerate((2, -15, 0)):
            write("rank_ended", rank=rank, exit_code=exit_code)
        assert write("attempt_ended", outcome=outcome) == num_failed
    assert write("job_finished", outcome="failed") == 2
    ranks.now += 65
    assert failed not in ranks.values()


def test_without_a_launcher_a_job_leaves_when_all_its_ranks_have_long_ended(root: Path) -> None:
    pages = [LivePage(root, rank=rank) for rank in range(2)]
    pages[0].phase("done")
    ranks = RanksFixture(root)
    assert states(ranks.values()) == {"done": 1, "init": 1}
    ranks.now += 1000
    pages[1].replace_identity(pid=DEAD_PID)
    assert states(ranks.values()) == {"done": 1, "gone": 1}
    ranks.now += 61
    assert not counters(ranks.values())


def test_a_launcher_that_wrote_no_end_is_waited_for_a_quarter_of_an_hour(root: Path) -> None:
    append_event(job_folder(root, "job"), Event(kind="job_started", job_id="job", attempt=0))
    LivePage(root).replace_identity(pid=DEAD_PID)
    ranks = RanksFixture(root)
    ranks.now += 890
    assert counters(ranks.values())
    ranks.now += 20
    assert not counters(ranks.values())


def test_a_job_whose_folder_is_removed_is_no_longer_served(root: Path) -> None:
    page = LivePage(root)
    ranks = RanksFixture(root)
    assert counters(ranks.values())
    page.path.unlink()
    page.path.parent.rmdir()
    assert counters(ranks.values())
    page.path.parents[1].rmdir()
    assert not counters(ranks.values())


def test_a_rank_that_trains_asynchronously_has_three_series_more_over_attempts(root: Path) -> None:
    rank = (*JOB, "3")
    for attempt, (rounds, independent) in enumerate(((7, 7), (5, 4))):
        page = LivePage(root, rank=3, attempt=attempt)
        for name, value in {
            "sync_rounds": rounds,
            "independent_rounds": independent,
            "staleness_steps": 2 + attempt,
            "synced_ns": time.monotonic_ns(),
        }.items():
            page.writer.periodic.know(name, value)
        page.writer.periodic.commit(1)
    values = RanksFixture(root).values()
    of_rank = [labels for metric, labels in values if metric in training.ASYNCHRONOUS_RANK_METRICS]
    # One of them twice: this rank has joined a round too.
    assert len(of_rank) == 4
    assert values[training.SYNC_ROUNDS, (*rank, "independent")] == 11
    assert values[training.SYNC_ROUNDS, (*rank, "round")] == 1
    assert values[training.STALENESS, rank] == 3
    assert values[training.LAST_SYNC, rank] == pytest.approx(time.time(), abs=5)
