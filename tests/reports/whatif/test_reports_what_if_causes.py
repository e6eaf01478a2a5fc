"""Clocks are set back on the evidence of all kinds; uneven batches, stages and ranks told apart."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from lockstep_reports.analysis.steps import analyse
from lockstep_reports.document.advice import step_advice
from lockstep_reports.readers import ReadOptions, read_source
from lockstep_reports.readers.traces import read_trace
from lockstep_reports.recording.operations import CLIP, OperationTrace
from lockstep_reports.recording.recording import Recording
from lockstep_reports.whatif.analysis import ask_what_if
from lockstep_reports.whatif.verdict import replay_trace

from ..matrices import matrix
from ..synthetic_trace import SyntheticTrace

PUBLISHED = Path(__file__).parents[2] / "fixtures" / "straggler-bytedance" / "trace-ST.parquet"
LAYOUTS = [(4, 4), (2, 2), (1, 4), (8, 1), (8, 2)]


def traced(job: SyntheticTrace, folder: Path) -> OperationTrace:
    path = folder / "trace.parquet"
    pq.write_table(job.table(), path)
    return read_trace(path)


@pytest.fixture(name="trace", params=["published", *LAYOUTS], ids=str)
def _trace(request: pytest.FixtureRequest, tmp_path: Path) -> OperationTrace:
    if request.param == "published":
        return read_trace(PUBLISHED)
    replicas, stages = request.param
    return traced(SyntheticTrace(replicas=replicas, stages=stages), tmp_path)


@pytest.mark.parametrize("rank", matrix(range(4), 2))
def test_a_rank_that_is_late_out_of_clipping_has_a_clock_that_is_right(
    trace: OperationTrace, rank: int
) -> None:
    is_clip = np.array(trace.types)[trace.type_of] == CLIP
    for seconds in (0.005, 0.05):
        later = np.where(is_clip & (trace.rank == rank), seconds, 0)
        what_if = ask_what_if(replace(trace, duration=trace.duration + later))
        assert not what_if.clocks.offset_seconds.any(), seconds
        assert what_if.model.negative_transfers == 0, seconds


@pytest.mark.parametrize("rank", matrix(range(4), 2))
def test_a_clock_that_shifts_all_times_of_a_rank_is_set_back_by_as_much(
    trace: OperationTrace, rank: int
) -> None:
    plain = ask_what_if(trace)
    for seconds in (-0.02, 0.005, 0.05):
        shift = np.where(trace.rank == rank, seconds, 0)
        shifted = ask_what_if(replace(trace, start=trace.start + shift))
        offset = shifted.clocks.offset_seconds
        expected = np.where(shifted.model.grid.rank == rank, seconds, 0)
        # Of two ranks that are apart either may be ahead; what matters is their distance.
        assert np.ptp(offset - expected) == pytest.approx(0, abs=1e-3), seconds
        assert shifted.model.negative_transfers <= plain.model.negative_transfers, seconds
        assert shifted.m_w == pytest.approx(plain.m_w, abs=1e-4), seconds


STAGE, SEQUENCES = "stage_imbalance", "sequence_lengths"
CASES: dict[str, tuple[dict[str, Any], tuple[str, object, str | None]]] = {
    "uneven": ({"batch_spread": 0.3}, ("workload", (), SEQUENCES)),
    "uneven, a little heavy": (
        {"batch_spread": 0.3, "stage_weight": {1: 1.05}},
        ("workload", (), SEQUENCES),
    ),
    "heavy": ({"stage_weight": {1: 1.3}}, ("group", "stage 1", STAGE)),
    "heavy, a little uneven": (
        {"batch_spread": 0.03, "stage_weight": {1: 1.5}},
        ("group", "stage 1", STAGE),
    ),
    "slow": ({"slow": {1: 1.5}}, ("rank", (1,), None)),
    "slow, a little uneven": ({"batch_spread": 0.1, "slow": {1: 1.6}}, ("rank", (1,), None)),
}


@pytest.mark.parametrize("layout", matrix([(2, 4), (4, 4), (2, 2), (4, 2)], 2), ids=str)
@pytest.mark.parametrize("seed", matrix(range(5), 1))
def test_uneven_batches_a_heavy_stage_and_a_slow_rank_are_told_apart(
    tmp_path: Path, layout: tuple[int, int], seed: int
) -> None:
    stages, replicas = layout
    verdicts = {}
    for case, (options, _) in CASES.items():
        job = SyntheticTrace(stages=stages, replicas=replicas, seed=seed, **options)
        verdict = replay_trace(traced(job, tmp_path)).verdict
        named = verdict.group if verdict.kind == "group" else verdict.ranks
        verdicts[case] = (verdict.kind, named, verdict.cause)
    assert verdicts == {case: expected for case, (_, expected) in CASES.items()}


@pytest.mark.parametrize(
    ("options", "advised", "not_advised"),
    [
        ({"stage_weight": {1: 1.4}}, "Move layers", "drain"),
        ({"batch_spread": 0.3}, "pack sequences", "drain"),
        ({"slow": {1: 1.5}}, "drain it", "layers"),
    ],
)
def test_advice_fits_the_cause(
    tmp_path: Path, options: dict[str, Any], advised: str, not_advised: str
) -> None:
    traced(SyntheticTrace(**options), tmp_path)
    recording = read_source(str(tmp_path / "trace.parquet"), ReadOptions())
    assert isinstance(recording, Recording)
    text = " ".join(step_advice(analyse(recording)))
    assert advised in text
    assert not_advised not in text
