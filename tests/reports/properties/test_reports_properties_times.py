"""Public iteration times get the same verdict whatever rows, units, names and cuts they have."""

import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_reports.analysis.steps import StepAnalysis

from ..report_command import reported

FIXTURES = Path(__file__).parents[2] / "fixtures"
WORKERS = FIXTURES / "minibatch-alibaba"
SERIES = sorted((FIXTURES / "megatron-iteration-times").glob("*.gz"))
SLOW = {"job_2_norm": set(), "job_3_norm": {6, 7, 8, 9}}
LIMITS = settings(max_examples=12, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Row:
    worker: int
    time: float
    seconds: float


def rows_of(job: str) -> list[Row]:
    _, *lines = (WORKERS / f"{job}.csv").read_text().splitlines()
    cells = [line.split(",") for line in lines if line.count(",") == 4]
    return [Row(int(worker), float(at), float(spent)) for _, worker, _, at, spent in cells]


def judged(
    folder: Path, rows: list[Row], columns: str = "worker,time,batch_time_norm"
) -> StepAnalysis:
    lines = [f"{row.worker},{row.time:.12g},{row.seconds:.12g}" for row in rows]
    path = folder / "any.csv"
    path.write_text("\n".join([columns, *lines, ""]))
    return reported(path)


def slow_ranks_of(report: StepAnalysis) -> tuple[str, set[int], list[tuple[int, int, int]]]:
    episodes = [(e.ranks[0], e.start_step, e.end_step) for e in report.episodes]
    return report.verdict.kind, set(report.verdict.ranks), sorted(episodes)


@pytest.fixture(name="plain", scope="module", params=SLOW)
def _plain(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, StepAnalysis]:
    """A job's name and its report, nothing changed."""
    return request.param, judged(tmp_path_factory.mktemp("t"), rows_of(request.param))


@LIMITS
@given(order=st.permutations(range(10)), factor=st.floats(1e-4, 1e4), seed=st.integers(0, 99))
def test_numbers_of_workers_units_and_order_of_rows_change_no_verdict(
    plain: tuple[str, StepAnalysis],
    tmp_path_factory: pytest.TempPathFactory,
    order: list[int],
    factor: float,
    seed: int,
) -> None:
    job, report = plain
    rows = rows_of(job)
    if job == "job_3_norm":  # job_2 tells one pair twice, and the last of the two counts
        random.Random(seed).shuffle(rows)
    changed = [Row(order[row.worker], row.time, row.seconds * factor) for row in rows]
    kind, ranks, episodes = slow_ranks_of(judged(tmp_path_factory.mktemp("t"), changed))
    expected = slow_ranks_of(report)
    assert (kind, ranks) == (expected[0], {order[rank] for rank in expected[1]})
    assert episodes == sorted((order[rank], begin, end) for rank, begin, end in expected[2])


@LIMITS
@given(end=st.integers(500, 2481), tail=st.sampled_from(["", "3", "3,", "3,2491", "3,2491,"]))
def test_a_recording_that_breaks_off_names_nobody_who_was_not_slow_by_then(
    plain: tuple[str, StepAnalysis], tmp_path_factory: pytest.TempPathFactory, end: int, tail: str
) -> None:
    job, _ = plain
    folder = tmp_path_factory.mktemp("t")
    judged(folder, [row for row in rows_of(job) if row.time < end])
    with (folder / "any.csv").open("a") as file:
        file.write(tail)
    report = reported(folder / "any.csv")
    assert set(report.verdict.ranks) <= (SLOW[job] if end > 2140 else set())
    assert report.verdict.kind == ("rank" if report.verdict.ranks else "nobody")


def test_times_of_each_workers_own_clock_are_brought_together(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    rows = [
        Row(row.worker, 1.7e9 + row.time + float(draw.uniform(-2, 2)), row.seconds)
        for row in rows_of("job_3_norm")
    ]
    report = judged(tmp_path, rows)
    assert set(report.verdict.ranks) == SLOW["job_3_norm"]
    assert any("slot of time" in note for note in report.steps.notes)


def series_of(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return document


def written(path: Path, document: dict[str, Any], values: dict[str, Any]) -> Path:
    document["iteration-time"] = document["iteration-time"] | {"values": values}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("path", SERIES, ids=lambda path: path.name[:8])
@LIMITS
@given(factor=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
def test_a_series_in_another_unit_and_order_tells_the_same_steps(
    tmp_path_factory: pytest.TempPathFactory, path: Path, factor: float, seed: int
) -> None:
    document, plain = series_of(path), reported(path)
    items = list(document["iteration-time"]["values"].items())
    random.Random(seed).shuffle(items)
    values = {at: value if value == "nan" else float(value) * factor for at, value in items}
    changed = reported(written(tmp_path_factory.mktemp("t") / "s.json", document, values))
    assert changed.verdict.kind == plain.verdict.kind
    assert changed.summary.count == plain.summary.count
    assert [s.index for s in changed.summary.spikes] == [s.index for s in plain.summary.spikes]
    assert changed.summary.median_seconds == pytest.approx(
        (plain.summary.median_seconds or 0) * factor
    )
