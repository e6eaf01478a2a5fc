"""The wall clock of a rank by state: exclusive, and summing to it to the nanosecond."""

import random
import statistics
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_catalogue.vocabulary import GOODPUT_STATES
from lockstep_outcomes.progress.goodput import (
    PAGE_STATES,
    GoodputSample,
    JobGoodput,
    best_interval_seconds,
    expected_ettr,
    failures_per_node_day,
    goodput_ns,
    job_weighted_ratio,
    recent_ettr,
    sum_goodput,
    totals_end_ns,
    whole_job,
)
from lockstep_outcomes.progress.hangs import hang_limit_seconds, median_step_seconds
from lockstep_records.events.event import Event
from lockstep_records.files.jobs import highest_step_before, page_path
from lockstep_records.page.layout import PERIODIC, PHASES, SLOT, STEP_BUCKETS
from lockstep_records.page.reader import Page, read_page
from lockstep_records.page.replicas import compare_replicas
from lockstep_records.page.writer import PageWriter, RankIdentity

SECOND_NS = 1_000_000_000
seconds = st.floats(0, 1e7, allow_nan=False)


def page(**parts: Any) -> Page:
    """A page that began at 1 s and whose last mark was just where its totals end."""
    spent = dict.fromkeys(PHASES, 0.0) | parts.pop("spent", {})
    periodic = {
        "process_seconds": parts.pop("process_seconds", None),
        "rework_seconds": dict.fromkeys(STEP_PHASES, 0.0) | parts.pop("rework", {}),
        "host_bound_seconds": dict.fromkeys(STEP_PHASES, 0.0) | parts.pop("host_bound", {}),
        "hang_seconds": dict.fromkeys(STEP_PHASES, 0.0) | parts.pop("hang", {}),
        "hang_timeout_seconds": parts.pop("hang_timeout", None),
        "pause_timeout_seconds": parts.pop("pause_timeout", None),
    }
    state = {
        "phase_seconds": spent,
        "steps": parts.pop("steps", 1),
        "step_seconds_sum": parts.pop("step_seconds_sum", 0.0),
        "step_buckets": parts.pop("step_buckets", {"1.0": 1}),
    }
    start = Page(
        path=Path("page"),
        identity={"start_monotonic_ns": SECOND_NS, "rank": 0, "mesh": {}},
        state=state,
        periodic=periodic,
        phase=parts.pop("phase", "forward"),
        progress_ns=0,
    )
    return replace(start, progress_ns=totals_end_ns(start) + parts.pop("marked_ns", 0))


@settings(max_examples=200, deadline=None)
@given(
    spent=st.dictionaries(st.sampled_from(PHASES), seconds),
    rework=st.dictionaries(st.sampled_from(STEP_PHASES), seconds),
    hang=st.dictionaries(st.sampled_from(STEP_PHASES), seconds),
    host_bound=st.dictionaries(st.sampled_from(STEP_PHASES), seconds),
    process_seconds=st.none() | seconds,
    phase=st.sampled_from(PHASES),
    marked_ns=st.integers(0, 10**12),
    since_ns=st.none() | st.integers(0, 10**15),
)
def test_the_states_sum_to_the_wall_clock_exactly_whatever_the_page_says(
    since_ns: int | None, process_seconds: float | None, **parts: Any
) -> None:
    rank_page = page(process_seconds=process_seconds, **parts)
    until = None if since_ns is None else rank_page.progress_ns + since_ns
    spent = goodput_ns(rank_page, until)
    process_ns = round((process_seconds or 0) * 1e9)
    assert tuple(spent) == PAGE_STATES
    assert min(spent.values()) >= 0
    assert sum(spent.values()) == process_ns + (until or totals_end_ns(rank_page)) - SECOND_NS


def test_each_phase_is_its_state_and_time_without_a_phase_is_unknown() -> None:
    spent = goodput_ns(page(spent=dict.fromkeys(PHASES, 1.0), process_seconds=3.0))
    assert spent == {
        "productive": 3 * SECOND_NS,
        "startup": 4 * SECOND_NS,
        "data_wait": SECOND_NS,
        "communication": SECOND_NS,
        "checkpoint": SECOND_NS,
        "evaluation": SECOND_NS,
        "restore": SECOND_NS,
        "rework": 0,
        "hang": 0,
        "host_bound": 0,
        "other": SECOND_NS,
        "unknown": 2 * SECOND_NS,
    }


def test_waiting_for_the_host_is_taken_out_of_own_work_and_never_out_of_the_loaders() -> None:
    spent = goodput_ns(
        page(
            spent={"data": 3.0, "forward": 5.0, "other": 1.0},
            host_bound={"data": 2.0, "forward": 4.0, "other": 7.0},
        )
    )
    assert spent["data_wait"] == 3 * SECOND_NS
    assert spent["productive"] == SECOND_NS
    assert spent["host_bound"] == 5 * SECOND_NS
    assert spent["other"] == 0


def test_rework_and_hangs_are_taken_out_of_their_states_and_checkpoints_are_never_rework() -> None:
    spent = goodput_ns(
        page(
            spent={"forward": 5.0, "sync": 400.0, "checkpoint": 2.0},
            rework={"forward": 2.0, "checkpoint": 2.0},
            hang={"sync": 300.0},
        )
    )
    assert spent["productive"] == 3 * SECOND_NS
    assert spent["rework"] == 2 * SECOND_NS
    assert spent["communication"] == 100 * SECOND_NS
    assert spent["hang"] == 300 * SECOND_NS
    assert spent["checkpoint"] == 2 * SECOND_NS


@pytest.mark.parametrize(
    ("phase", "since_seconds", "state"),
    [
        ("sync", 119, "communication"),
        ("sync", 121, "hang"),
        ("init", 600, "startup"),
        ("restore", 600, "restore"),
        ("done", 600, "unknown"),
    ],
)
def test_the_time_since_the_last_heartbeat_is_its_phase_until_it_is_a_hang(
    phase: str, since_seconds: int, state: str
) -> None:
    rank_page = page(phase=phase)
    spent = goodput_ns(rank_page, rank_page.progress_ns + since_seconds * SECOND_NS)
    assert {name: spent for name, spent in spent.items() if spent} == {
        state: since_seconds * SECOND_NS
    }


@pytest.mark.parametrize(("own", "limit"), [(None, 1800), (300.0, 300)])
def test_before_the_first_step_a_pauses_time_out_holds(own: float | None, limit: int) -> None:
    rank_page = page(phase="sync", steps=0, step_buckets={"1.0": 0}, pause_timeout=own)
    before, after = (limit - 1) * SECOND_NS, (limit + 1) * SECOND_NS
    at = rank_page.progress_ns
    assert goodput_ns(rank_page, at + before)["communication"] == before
    assert goodput_ns(rank_page, at + after)["hang"] == after


def test_a_rank_with_a_time_out_of_its_own_hangs_by_that() -> None:
    rank_page = page(phase="sync", hang_timeout=30.0)
    at = rank_page.progress_ns
    assert goodput_ns(rank_page, at + 31 * SECOND_NS)["hang"] == 31 * SECOND_NS


def buckets(*seconds: float) -> list[int]:
    """Steps by duration as a page counts them."""
    counts = [0] * (len(STEP_BUCKETS) + 1)
    for duration in seconds:
        counts[bisect_left(STEP_BUCKETS, duration)] += 1
    return counts


def test_a_hang_is_judged_by_the_median_step_where_steps_are_long() -> None:
    assert hang_limit_seconds(None) == hang_limit_seconds(1.0) == 120.0
    assert hang_limit_seconds(60.0) == 20 * 60
    assert hang_limit_seconds(1.0, 5.0) == 20.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.001, 300), min_size=1, max_size=99))
def test_the_histograms_median_lies_in_the_bucket_of_the_median(durations: list[float]) -> None:
    median = median_step_seconds(buckets(*durations), sum(durations))
    low = statistics.median_low(durations)
    index = bisect_left(STEP_BUCKETS, low)
    bounds = (0.0, *STEP_BUCKETS, float("inf"))
    assert median is not None
    assert bounds[index] <= median <= bounds[index + 1]


def test_the_median_of_no_step_is_unknown_and_one_beyond_the_buckets_is_the_mean() -> None:
    assert median_step_seconds(buckets(), 0.0) is None
    assert median_step_seconds(buckets(200.0, 300.0), 500.0) == 250.0
    assert median_step_seconds(buckets(90.0), float("nan")) == STEP_BUCKETS[-1]


def writer(root: Path, rank: int, attempt: int = 0, **mesh: int) -> PageWriter:
    path = page_path(root, "job", attempt, rank)
    identity = RankIdentity(job_id="job", rank=rank, world_size=8, mesh=tuple(mesh.items()))
    return PageWriter(path, identity, rows=4)


def test_the_highest_step_of_an_earlier_attempt_is_found_on_any_rank(memory: Path) -> None:
    for attempt, rank, step in ((0, 3, 70), (1, 2, 50), (1, 4, 49)):
        page_writer = writer(memory, rank, attempt)
        page_writer.now.know("step", step)
        page_writer.commit(1)
    assert highest_step_before(page_path(memory, "job", 2, 3)) == 70
    assert highest_step_before(page_path(memory, "job", 1, 3)) == 70
    assert highest_step_before(page_path(memory, "job", 0, 3)) is None
    assert highest_step_before(memory / "elsewhere" / "page") is None
    (page_path(memory, "job", 0, 3)).write_bytes(b"not a page")
    assert highest_step_before(page_path(memory, "job", 2, 4)) == 49


def fingerprinted(root: Path, rank: int, fingerprints: dict[int, int], **mesh: int) -> Page:

    page_writer = writer(root, rank, **mesh)
    for index, (step, value) in enumerate(fingerprints.items()):
        page_writer.periodic.signed[PERIODIC.word("fingerprint_step") + index] = step
        page_writer.periodic.words[PERIODIC.word("fingerprint_parameters") + index] = value
        page_writer.periodic.count("fingerprints")
    page_writer.periodic.commit(1)
    assert SLOT.word("sequence") == 0
    return read_page(page_writer.path)


def test_replicas_are_compared_at_their_newest_common_step_part_by_part(memory: Path) -> None:
    pages = [
        fingerprinted(memory, 0, {100: 5, 200: 6}, dp=0, pp=0),
        fingerprinted(memory, 1, {100: 5}, dp=1, pp=0),
        fingerprinted(memory, 2, {100: 9, 300: 1}, dp=2, pp=0),
        fingerprinted(memory, 3, {100: 8}, dp=0, pp=1),
        fingerprinted(memory, 4, {100: 8}, dp=1, pp=1),
        fingerprinted(memory, 5, {100: 8}, dp=0, pp=2),
    ]
    first, second = compare_replicas(pages)
    assert (first.step, first.ranks, first.odd) == (100, (0, 1, 2), (2,))
    assert (second.part, second.ranks, second.odd) == ((("pp", 1),), (3, 4), ())


def test_two_replicas_that_differ_are_both_odd(memory: Path) -> None:
    pages = [fingerprinted(memory, rank, {10: rank}, dp=rank) for rank in range(2)]
    assert [comparison.odd for comparison in compare_replicas(pages)] == [(0, 1)]


def event(kind: str, time: float, attempt: int = 0, node: str = "a", **fields: Any) -> Event:
    return Event(kind=kind, job_id="j", attempt=attempt, time=time, node=node, fields=fields)


def goodput(time: float, attempt: int, node: str = "a", **seconds: float) -> Event:
    return event("goodput", time, attempt, node, rank_seconds=seconds, num_ranks=4)


def test_states_of_two_attempts_and_the_recovery_between_sum_to_the_allocated_time() -> None:
    events = [
        event("job_started", 0.0),
        event("attempt_started", 5.0),
        goodput(50.0, 0, productive=150.0, startup=50.0),
        goodput(100.0, 0, productive=300.0, startup=50.0, hang=50.0),
        event("attempt_ended", 100.0),
        event("attempt_started", 112.0, 1),
        goodput(212.0, 1, productive=300.0, restore=60.0, rework=40.0),
        event("attempt_ended", 212.0, 1),
        event("job_finished", 212.0, 1),
    ]
    job = whole_job(events)
    assert job is not None
    assert job.num_attempts == 2
    assert job.goodput.gpu_seconds == {
        "productive": 600.0, "startup": 50.0, "hang": 50.0, "restore": 60.0, "rework": 40.0,
        "recovery": 48.0,
    }  # fmt: skip
    assert job.goodput.allocated_gpu_seconds == pytest.approx(212.0 * 4)
    assert job.elapsed_seconds == pytest.approx(212.0)


def test_between_two_launches_nothing_is_allocated() -> None:
    events = [
        event("job_started", 0.0), event("attempt_started", 0.0),
        goodput(100.0, 0, productive=400.0), event("attempt_ended", 100.0),
        event("job_started", 5000.0, 1), event("attempt_started", 5000.0, 1),
        goodput(5100.0, 1, productive=400.0), event("attempt_ended", 5100.0, 1),
    ]  # fmt: skip
    job = whole_job(events)
    assert job is not None
    assert "recovery" not in job.goodput.gpu_seconds
    assert job.goodput.allocated_gpu_seconds == 800.0


def test_a_job_of_which_nobody_told_a_goodput_has_none() -> None:
    assert whole_job([event("job_started", 0.0), event("attempt_started", 1.0)]) is None


DAY_SECONDS = 86_400.0


def simulated_ettr(
    chance: random.Random,
    *,
    num_nodes: float,
    failures_per_node_day: float,
    restart_seconds: float,
    interval_seconds: float,
    save_seconds: float,
    productive_seconds: float,
) -> float:
    """Wall clock of a job that fails at random: exponential times, every event simulated."""
    rate = num_nodes * failures_per_node_day / DAY_SECONDS
    wall = done = since_checkpoint = 0.0
    fails_in = chance.expovariate(rate)
    while done < productive_seconds:
        to_checkpoint = min(interval_seconds, productive_seconds - done) - since_checkpoint
        step = to_checkpoint + save_seconds
        if fails_in > step:
            wall, fails_in = wall + step, fails_in - step
            done, since_checkpoint = done + to_checkpoint + since_checkpoint, 0.0
            continue
        # The work since the checkpoint is lost, and a restart may fail as training does.
        wall += fails_in + restart_seconds
        fails_in = chance.expovariate(rate)
    return done / wall


# The rates are RSC-1's and RSC-2's of the paper: 6.50 and 2.34 failures per 1,000 node-days.
FLEETS = [
    (64, 6.50, 300.0, 3600.0, 30.0),
    (256, 6.50, 300.0, 3600.0, 60.0),
    (512, 6.50, 300.0, 1800.0, 20.0),
    (256, 2.34, 1200.0, 3600.0, 300.0),
    (1024, 2.34, 600.0, 1200.0, 10.0),
]


@pytest.mark.parametrize(("nodes", "rate", "restart", "interval", "save"), FLEETS)
def test_the_formula_of_meta_agrees_with_a_simulated_fleet_within_two_percent(
    nodes: int, rate: float, restart: float, interval: float, save: float
) -> None:
    fleet = {
        "num_nodes": nodes, "failures_per_node_day": rate / 1000, "restart_seconds": restart,
        "interval_seconds": interval, "save_seconds": save,
    }  # fmt: skip
    chance = random.Random(7)
    simulated = simulated_ettr(chance, productive_seconds=3000 * DAY_SECONDS, **fleet)
    assert expected_ettr(**fleet) == pytest.approx(simulated, rel=0.02)


@given(
    nodes=st.floats(1, 5000),
    rate=st.floats(1e-4, 1e-2),
    save=st.floats(0.1, 600),
    factor=st.floats(0.5, 2),
)
def test_no_other_interval_is_better_than_the_best(
    nodes: float, rate: float, save: float, factor: float
) -> None:
    best = best_interval_seconds(num_nodes=nodes, failures_per_node_day=rate, save_seconds=save)
    assert best is not None
    fleet = {"num_nodes": nodes, "failures_per_node_day": rate, "restart_seconds": 0.0,
             "save_seconds": save}  # fmt: skip
    at_best = expected_ettr(interval_seconds=best, **fleet)
    # Young's interval is the best of the first-order form; its product term is beyond it.
    slack = (nodes * rate / DAY_SECONDS * (best * max(factor, 1) + save)) ** 2 + 1e-9
    assert expected_ettr(interval_seconds=best * factor, **fleet) <= at_best + slack


def test_without_failures_or_cost_there_is_no_best_interval() -> None:
    assert best_interval_seconds(num_nodes=9, failures_per_node_day=0, save_seconds=5) is None
    assert best_interval_seconds(num_nodes=9, failures_per_node_day=0.1, save_seconds=0) is None
    assert failures_per_node_day(3, 2 * DAY_SECONDS) == 1.5
    assert failures_per_node_day(3, 0.0) is None


def test_a_cluster_is_weighted_by_jobs_and_by_gpu_time() -> None:
    small = JobGoodput(gpu_seconds={"productive": 1.0, "startup": 9.0})
    large = JobGoodput(gpu_seconds={"productive": 800.0, "idle": 100.0, "unknown": 100.0})
    empty = JobGoodput(gpu_seconds={})
    cluster = sum_goodput([small, large, empty])
    assert job_weighted_ratio([small, large, empty]) == pytest.approx((0.1 + 0.8) / 2)
    assert cluster.productive_ratio == pytest.approx(801 / 1010)
    assert set(cluster.gpu_seconds) == set(GOODPUT_STATES)
    assert job_weighted_ratio([]) is sum_goodput([]).productive_ratio is None


def test_slow_steps_are_progress_and_no_goodput() -> None:
    job = JobGoodput(gpu_seconds={"productive": 50, "straggler_wait": 30, "rework": 20})
    assert job.productive_ratio == 0.5
    assert job.ettr_ratio == 0.8
    assert JobGoodput(gpu_seconds={}).ettr_ratio is None


def test_the_last_hour_shows_what_the_whole_hides() -> None:
    samples = [GoodputSample(t * 600.0, t * 540.0, t * 600.0) for t in range(145)]
    end = samples[-1]
    samples += [
        GoodputSample(end.time + t * 600, end.productive, end.allocated + t * 600)
        for t in range(1, 4)
    ]
    assert recent_ettr(samples) == pytest.approx(0.45)
    # The window's begin lies between two samples.
    assert recent_ettr(samples, 2100.0) == pytest.approx(0.9 * 300 / 2100)


def test_the_last_hour_of_a_young_job_is_its_life() -> None:
    assert recent_ettr([GoodputSample(10.0, 30.0, 60.0)]) == 0.5
    assert recent_ettr([]) is None
    assert recent_ettr([GoodputSample(10.0, 0.0, 0.0)]) is None
    stalled = [GoodputSample(0.0, 5.0, 10.0), GoodputSample(9000.0, 5.0, 10.0)]
    assert recent_ettr(stalled) is None
