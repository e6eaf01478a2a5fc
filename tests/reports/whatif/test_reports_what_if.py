"""The replay against the published answers, and against jobs whose truth is known."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lockstep_reports.analysis.steps import analyse
from lockstep_reports.document.advice import step_advice
from lockstep_reports.readers import ReadOptions, read_source
from lockstep_reports.readers.traces import read_trace
from lockstep_reports.recording.operations import CLIP, OperationTrace
from lockstep_reports.recording.recording import Recording
from lockstep_reports.whatif.analysis import WhatIf, ask_what_if
from lockstep_reports.whatif.verdict import Replayed, replay_trace

from ..matrices import matrix
from ..synthetic_trace import SyntheticTrace

PUBLISHED = Path(__file__).parents[2] / "fixtures" / "straggler-bytedance"
Answers = dict[str, dict[str, float]]


def answers(name: str) -> dict[str, float]:
    read: dict[str, float] = json.loads((PUBLISHED / f"{name}-ST.json").read_text())
    return read


@pytest.fixture(scope="module", name="what_if")
def _what_if() -> WhatIf:
    return ask_what_if(read_trace(PUBLISHED / "trace-ST.parquet"))


@pytest.fixture(scope="module", name="result")
def _result() -> Answers:
    read: Answers = json.loads((PUBLISHED / "result-ST.json").read_text())
    return read


def near(value: object) -> object:
    return pytest.approx(value, rel=1e-6)


def by_step(what_if: WhatIf, values: np.ndarray) -> dict[str, float]:
    return dict(zip(map(str, what_if.model.grid.steps.tolist()), values.tolist(), strict=True))


def test_slowdowns_are_the_published_ones(what_if: WhatIf, result: Answers) -> None:
    assert what_if.slowdown == near(result["blocking_slowdown"])
    assert what_if.launch_slowdown == near(result["launch_slowdown"])


def test_every_step_is_the_published_one(what_if: WhatIf, result: Answers) -> None:
    recorded, seconds, ideal = what_if.recorded_seconds, what_if.seconds, what_if.ideal_seconds
    assert by_step(what_if, recorded) == near(result["step_t_base"])
    assert by_step(what_if, seconds) == near(result["step_t_nodelay"])
    assert by_step(what_if, ideal) == near(result["step_t_noblk"])
    assert by_step(what_if, seconds / ideal) == near(result["blocking_step_slowdown"])
    assert by_step(what_if, recorded / seconds) == near(result["launch_step_slowdown"])


@pytest.mark.parametrize("split", ["optype", "dp_rank", "stage"])
def test_every_split_is_the_published_one(
    what_if: WhatIf, result: dict[str, dict[str, dict[str, float]]], split: str
) -> None:
    by_part = {
        "optype": what_if.by_type,
        "dp_rank": dict(zip("01", what_if.by_replica, strict=True)),
        "stage": dict(zip("0123", what_if.by_stage, strict=True)),
    }[split]
    ideal = what_if.ideal_seconds
    slowdowns = {name: float(values.mean() / ideal.mean()) for name, values in by_part.items()}
    assert slowdowns == near(result[f"blocking_decompose_by_{split}"])
    published = result[f"blocking_decompose_by_{split}_per_step"]
    for name, values in by_part.items():
        ours = by_step(what_if, values / ideal)
        assert ours == near({step: by_name[name] for step, by_name in published.items()})


@pytest.mark.parametrize("name", ["ms", "mw"])
def test_what_the_slow_ranks_explain_is_as_published(what_if: WhatIf, name: str) -> None:
    explanation = what_if.stages[-1] if name == "ms" else what_if.worst
    assert {
        "tori": explanation.seconds,
        "tideal": float(what_if.ideal_seconds.mean()),
        "trem": explanation.without_seconds,
        "tadd": explanation.only_seconds,
        "rem": explanation.removed,
        "add": explanation.added,
        "Ms" if name == "ms" else "Mw": explanation.removed,
    } == near(answers(name))


def trace_of(job: SyntheticTrace, folder: Path) -> OperationTrace:
    path = folder / "job.parquet"
    pq.write_table(job.table(), path)
    return read_trace(path)


def judged(job: SyntheticTrace, folder: Path) -> Replayed:
    return replay_trace(trace_of(job, folder))


def test_two_slow_ranks_that_share_neither_stage_nor_replica_are_both_named(tmp_path: Path) -> None:
    job = SyntheticTrace(slow={1: 1.5, 10: 1.5})
    verdict = judged(job, tmp_path).verdict
    assert (verdict.kind, verdict.ranks) == ("rank", (1, 10))


def test_with_one_rank_a_stage_no_cause_is_claimed(tmp_path: Path) -> None:
    verdict = judged(SyntheticTrace(replicas=1, slow={1: 1.5}), tmp_path).verdict
    assert (verdict.group, verdict.ranks, verdict.cause) == ("stage 1", (1,), None)


def test_steps_with_operations_missing_are_left_out_and_told(tmp_path: Path) -> None:
    table = SyntheticTrace(slow={5: 1.5}).table()
    gone = (np.asarray(table["step"]) == 3) & (np.asarray(table["rank"]) == 2)
    path = tmp_path / "holes.parquet"
    pq.write_table(table.filter(pa.array(~gone)), path)
    replayed = replay_trace(read_trace(path))
    assert replayed.verdict.ranks == (5,)
    assert replayed.what_if is not None
    assert len(replayed.what_if.seconds) == 9
    assert "1 step with operations missing" in " ".join(replayed.what_if.model.grid.notes)


def test_a_replica_that_is_missing_leaves_the_others_to_be_judged(tmp_path: Path) -> None:
    table = SyntheticTrace(slow={5: 1.5}).table()
    path = tmp_path / "gone.parquet"
    pq.write_table(table.filter(pa.array(np.asarray(table["rank"]) != 2)), path)
    replayed = replay_trace(read_trace(path))
    assert replayed.verdict.ranks == (5,)


def test_without_a_complete_step_the_reason_stands_where_the_answer_would(tmp_path: Path) -> None:
    table = SyntheticTrace(stages=2, num_steps=4).table()
    odd = (np.asarray(table["rank"]) + np.asarray(table["step"])) % 2 == 1
    path = tmp_path / "odd.parquet"
    pq.write_table(table.filter(pa.array(odd)), path)
    replayed = replay_trace(read_trace(path))
    assert replayed.what_if is None
    assert replayed.verdict.kind == "unknown"
    assert "cannot be replayed" in (replayed.why_not or "")


LAYOUTS = [(4, 4), (2, 2), (1, 4), (8, 1), (8, 2)]


@pytest.fixture(name="trace", params=["published", *LAYOUTS], ids=str)
def _trace(request: pytest.FixtureRequest, tmp_path: Path) -> OperationTrace:
    if request.param == "published":
        return read_trace(PUBLISHED / "trace-ST.parquet")
    replicas, stages = request.param
    return trace_of(SyntheticTrace(replicas=replicas, stages=stages), tmp_path)


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
        verdict = replay_trace(trace_of(job, tmp_path)).verdict
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
    trace_of(SyntheticTrace(**options), tmp_path)
    recording = read_source(str(tmp_path / "job.parquet"), ReadOptions())
    assert isinstance(recording, Recording)
    text = " ".join(step_advice(analyse(recording)))
    assert advised in text
    assert not_advised not in text
