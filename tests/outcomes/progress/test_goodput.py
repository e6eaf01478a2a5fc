"""The wall clock of a rank by state: exclusive, and summing to it to the nanosecond."""

import statistics
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_outcomes.progress.goodput import PAGE_STATES, goodput_ns, totals_end_ns
from lockstep_outcomes.progress.hangs import hang_limit_seconds, median_step_seconds
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
def test_before_the_first_step_the_time_out_is_that_of_a_pause(
    own: float | None, limit: int
) -> None:
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
def test_the_median_by_the_histogram_lies_in_the_bucket_of_the_median(
    durations: list[float],
) -> None:
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


def test_the_highest_step_of_an_earlier_attempt_is_found_on_this_rank_or_another(
    memory: Path,
) -> None:
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
