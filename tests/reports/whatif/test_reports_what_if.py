"""The replay against the published answers, and against jobs whose truth is known."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_reports.readers.traces import read_trace
from lockstep_reports.recording.operations import OperationTrace
from lockstep_reports.whatif.analysis import WhatIf, ask_what_if
from lockstep_reports.whatif.verdict import Replayed, replay_trace

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


def test_the_published_job_has_a_heavy_last_stage() -> None:
    verdict = replay_trace(read_trace(PUBLISHED / "trace-ST.parquet")).verdict
    assert (verdict.kind, verdict.group, verdict.ranks) == ("group", "stage 3", (6, 7))
    assert (verdict.phase, verdict.cause) == ("forward", "stage_imbalance")


def test_csv_gives_what_parquet_gives_up_to_its_six_decimals(what_if: WhatIf) -> None:
    read = ask_what_if(read_trace(PUBLISHED / "trace-ST.csv.gz"))
    assert read.slowdown == pytest.approx(what_if.slowdown, rel=1e-6)
    assert read.m_s == pytest.approx(what_if.m_s, rel=1e-5)


def trace_of(job: SyntheticTrace, folder: Path) -> OperationTrace:
    path = folder / "job.parquet"
    pq.write_table(job.table(), path)
    return read_trace(path)


def judged(job: SyntheticTrace, folder: Path) -> Replayed:
    return replay_trace(trace_of(job, folder))


@pytest.mark.parametrize("rank", [0, 5, 15])
@pytest.mark.parametrize("slow", [1.1, 1.5])
def test_a_slow_rank_is_named(tmp_path: Path, rank: int, slow: float) -> None:
    verdict = judged(SyntheticTrace(slow={rank: slow}), tmp_path).verdict
    assert (verdict.kind, verdict.ranks) == ("rank", (rank,))


@pytest.mark.parametrize("stage", [1, 3])
def test_a_heavy_stage_is_named_wherever_it_stands(tmp_path: Path, stage: int) -> None:
    verdict = judged(SyntheticTrace(stage_weight={stage: 1.6}), tmp_path).verdict
    assert (verdict.kind, verdict.group) == ("group", f"stage {stage}")
    assert verdict.cause == "stage_imbalance"


def test_two_slow_ranks_that_share_neither_stage_nor_replica_are_both_named(tmp_path: Path) -> None:
    job = SyntheticTrace(slow={1: 1.5, 10: 1.5})
    verdict = judged(job, tmp_path).verdict
    assert (verdict.kind, verdict.ranks) == ("rank", (1, 10))


def test_a_node_whose_ranks_are_all_slow_is_named(tmp_path: Path) -> None:
    job = SyntheticTrace(replicas=16, slow=dict.fromkeys(range(4, 8), 1.5), ranks_on_node=4)
    verdict = judged(job, tmp_path).verdict
    assert (verdict.kind, verdict.group, verdict.ranks) == ("group", "node-0001", (4, 5, 6, 7))


def test_uneven_sequences_are_the_workload_and_no_rank(tmp_path: Path) -> None:
    verdict = judged(SyntheticTrace(batch_spread=0.3), tmp_path).verdict
    assert (verdict.kind, verdict.cause, verdict.ranks) == ("workload", "sequence_lengths", ())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("replicas", "stages"), [(1, 1), (8, 1), (4, 4), (1, 4)])
def test_in_a_healthy_job_nobody_is_named(
    tmp_path: Path, seed: int, replicas: int, stages: int
) -> None:
    job = SyntheticTrace(seed=seed, replicas=replicas, stages=stages, jitter=0.02)
    replayed = judged(job, tmp_path)
    assert (replayed.verdict.kind, replayed.episodes) == ("nobody", ())


def test_with_one_rank_a_stage_no_cause_is_claimed(tmp_path: Path) -> None:
    verdict = judged(SyntheticTrace(replicas=1, slow={1: 1.5}), tmp_path).verdict
    assert (verdict.group, verdict.ranks, verdict.cause) == ("stage 1", (1,), None)


@settings(max_examples=15, deadline=None)
@given(ranked=st.permutations(range(16)), seed=st.integers(0, 3))
def test_ranks_may_have_other_numbers(
    tmp_path_factory: pytest.TempPathFactory, ranked: list[int], seed: int
) -> None:
    trace = trace_of(SyntheticTrace(slow={6: 1.4}, seed=seed), tmp_path_factory.mktemp("t"))
    renamed = replace(trace, rank=np.array(ranked)[trace.rank])
    assert replay_trace(renamed).verdict.ranks == (ranked[6],)


@settings(max_examples=15, deadline=None)
@given(scale=st.floats(0.05, 50), seed=st.integers(0, 3))
def test_all_times_may_be_scaled(
    tmp_path_factory: pytest.TempPathFactory, scale: float, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    plain = judged(SyntheticTrace(slow={6: 1.4}, seed=seed), folder)
    scaled = judged(SyntheticTrace(slow={6: 1.4}, seed=seed, scale=scale), folder)
    assert (scaled.verdict.kind, scaled.verdict.ranks) == ("rank", (6,))
    assert plain.what_if is not None
    assert scaled.what_if is not None
    assert scaled.what_if.slowdown == pytest.approx(plain.what_if.slowdown, rel=1e-3)


@settings(max_examples=25, deadline=None)
@given(rank=st.integers(0, 15), skew=st.sampled_from([-0.03, 0.03]), slow=st.booleans())
def test_a_clock_thirty_milliseconds_off_changes_no_verdict(
    tmp_path_factory: pytest.TempPathFactory, rank: int, skew: float, slow: bool
) -> None:
    job = SyntheticTrace(slow={6: 1.4} if slow else {}, clock_skew={rank: skew})
    replayed = judged(job, tmp_path_factory.mktemp("t"))
    assert replayed.verdict.ranks == ((6,) if slow else ())
    assert replayed.what_if is not None
    worst = np.abs(replayed.what_if.clocks.offset_seconds).max()
    assert worst == pytest.approx(0.03, abs=1e-3)


@settings(max_examples=10, deadline=None)
@given(rank=st.integers(0, 7), skew=st.sampled_from([-0.03, 0.03]))
def test_the_published_verdict_survives_a_skewed_clock(rank: int, skew: float) -> None:
    trace = read_trace(PUBLISHED / "trace-ST.parquet")
    start = trace.start + np.where(trace.rank == rank, skew, 0)
    verdict = replay_trace(replace(trace, start=start)).verdict
    assert (verdict.group, verdict.ranks) == ("stage 3", (6, 7))


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
