"""The replay agrees with an independent one, written in plain loops, on traces of any layout."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from lockstep_reports.readers.traces import read_trace
from lockstep_reports.whatif.analysis import ask_what_if

from ..matrices import matrix
from ..synthetic_trace import SyntheticTrace
from .what_if_reference import Reference

NUM_TRACES, TRACES_A_CASE = 200, 8


def trace_of(seed: int) -> SyntheticTrace:
    """Layout, noise, unevenness and slow parts drawn from a seed."""
    draw = np.random.default_rng([4242, seed])
    replicas, stages = int(draw.integers(1, 5)), int(draw.integers(1, 6))
    num_ranks = replicas * stages
    return SyntheticTrace(
        replicas=replicas,
        stages=stages,
        batches=int(draw.integers(2, 9)),
        num_steps=int(draw.integers(2, 5)),
        slow={int(draw.integers(num_ranks)): float(draw.uniform(1, 2))},
        stage_weight={int(draw.integers(stages)): float(draw.uniform(1, 1.6))},
        batch_spread=float(draw.choice([0.0, 0.2, 0.4])),
        jitter=float(draw.uniform(0.005, 0.1)),
        seed=int(draw.integers(1 << 31)),
    )


@pytest.mark.parametrize("first", matrix(range(0, NUM_TRACES, TRACES_A_CASE), 1))
def test_the_replay_gives_what_the_formulas_give(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + TRACES_A_CASE):
        assert_parity(trace_of(seed), tmp_path / f"trace-{seed}.parquet")


def assert_parity(job: SyntheticTrace, path: Path) -> None:
    table = job.table()
    pq.write_table(table, path)
    what_if = ask_what_if(read_trace(path))
    expected = Reference(table.to_pylist()).answers()
    ideal = what_if.ideal_seconds.mean()
    answers = {
        "slowdown": what_if.slowdown,
        "m_w": what_if.m_w,
        "m_s": what_if.stages[-1].removed,
        **{f"stage {s}": v.mean() / ideal for s, v in enumerate(what_if.by_stage)},
        **{f"replica {r}": v.mean() / ideal for r, v in enumerate(what_if.by_replica)},
    }
    # Traces hold seconds as float32; M_W and M_S divide by the slowdown, which may be small.
    assert answers["slowdown"] == pytest.approx(expected["slowdown"], rel=1e-6)
    for name in ("m_w", "m_s"):
        assert (answers[name] is None) == (expected[name] is None)
    named = [name for name, value in expected.items() if value is not None]
    assert [answers[name] for name in named] == pytest.approx(
        [expected[name] for name in named], rel=1e-5, abs=1e-5
    )
