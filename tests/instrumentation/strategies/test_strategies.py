"""Every strategy for real over gloo: a delay of one rank is found in its phase, and as long."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockstep_catalogue.labels import OWN_WORK_PHASES, STEP_PHASES
from lockstep_records.page.reader import read_page, read_rows

from ..torch_versions import IS_TORCH_2_7, hangs_in_pipelines

LOOP = Path(__file__).with_name("strategies_loop.py")
TWO_RANK_STRATEGIES = ("ddp", "fsdp2", "tp", "ep", "gpipe", "1f1b", "interleaved")
FOUR_RANK_STRATEGIES = ("hsdp", "1f1b-fsdp2")
# The others have the instrumentation points of ddp, fsdp2, tp and 1f1b.
LARGE_MATRIX = {"ep", "gpipe", "interleaved", "hsdp", "1f1b-fsdp2"}
PIPELINES = {"gpipe", "1f1b", "interleaved", "1f1b-fsdp2"}


def strategy(name: str, *values: Any) -> Any:
    marks = [pytest.mark.release] if name in LARGE_MATRIX else []
    return pytest.param(
        name, *values, marks=[*marks, *([hangs_in_pipelines] if name in PIPELINES else [])]
    )


STRATEGIES = [strategy(name) for name in (*TWO_RANK_STRATEGIES, *FOUR_RANK_STRATEGIES)]
WARM_UP = 8
DELAY_SECONDS = 0.1
TOLERANCE_SECONDS = max(0.0003, 0.05 * DELAY_SECONDS)
SLOW, VICTIM = 1, 0

pytestmark = [pytest.mark.distributed, pytest.mark.timing, pytest.mark.timeout(240)]


@dataclass(frozen=True)
class Run:
    """Pages and operations of a strategy's ranks after the warm-up, and each step's delay."""

    turns: list[tuple[str, float]]
    rows: list[list[dict[str, Any]]]
    states: list[dict[str, Any]]
    operations: list[list[tuple[str, int | None, int | None, str | None]]]

    def quickest(self, rank: int, phase: str, turn: str) -> float:
        """Seconds in a phase less the true delay: a busy machine makes steps longer only."""
        inside = phase == turn or (phase, turn) == ("sync", "collective")
        return min(
            float(row["phase_seconds"][phase]) - (slept if inside and rank == SLOW else 0.0)
            for row, (delayed, slept) in zip(self.rows[rank], self.turns, strict=True)
            if delayed == turn
        )

    def excess(self, rank: int, phase: str, turn: str) -> float:
        """The same less the quickest of the steps after: more would be quicker by chance."""
        after = (
            float(row["phase_seconds"][phase])
            for row, (previous, _) in zip(self.rows[rank][1:], self.turns, strict=False)
            if previous == turn
        )
        return self.quickest(rank, phase, turn) - min(after)

    def waited(self, rank: int, turn: str) -> float:
        """Median wait in a step and the next, in which a rank that ended late is waited for."""
        sync = [float(row["phase_seconds"]["sync"]) for row in self.rows[rank]]
        return statistics.median(
            sync[step] + sync[step + 1]
            for step, (delayed, _) in enumerate(self.turns[:-1])
            if delayed == turn
        )


def read_run(root: Path, name: str, ranks: int) -> Run:
    pages = [
        read_page(root / "jobs" / name / "0" / f"rank-{rank:05}.page") for rank in range(ranks)
    ]
    turns = [(delayed, slept) for delayed, slept in json.loads((root / f"{name}.json").read_text())]
    return Run(
        turns=turns[WARM_UP:],
        rows=[read_rows(page)[WARM_UP:] for page in pages],
        states=[page.state for page in pages],
        operations=[
            [
                tuple(operation)
                for operation in json.loads((root / f"{name}-{rank}.ops.json").read_text())
            ]
            for rank in range(ranks)
        ],
    )


def launch(root: Path, ranks: int, names: tuple[str, ...]) -> dict[str, Run]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), str(LOOP), str(root), *names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, check=False, timeout=200, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return {name: read_run(root, name, ranks) for name in names}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Run]]:
    """The strategies that the selected tests ask for, each trained once."""
    parameters = [getattr(item, "callspec", None) for item in request.session.items]
    selected = {spec.params.get("name") for spec in parameters if spec} | {"ddp", "fsdp2"}
    selected -= PIPELINES if IS_TORCH_2_7 else set()
    root = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir="/dev/shm"))
    try:
        yield {
            name: run
            for ranks, names in ((2, TWO_RANK_STRATEGIES), (4, FOUR_RANK_STRATEGIES))
            if (chosen := tuple(name for name in names if name in selected))
            for name, run in launch(root, ranks, chosen).items()
        }
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("phase", OWN_WORK_PHASES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_delay_of_one_rank_is_found_in_its_own_phase_and_in_no_other_of_its_work(
    runs: dict[str, Run], name: str, phase: str
) -> None:
    run = runs[name]
    for own in OWN_WORK_PHASES:
        excess = run.excess(SLOW, own, phase)
        assert abs(excess) <= TOLERANCE_SECONDS, own


@pytest.mark.parametrize("phase", OWN_WORK_PHASES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_other_rank_waits_as_long_and_its_own_work_does_not_grow(
    runs: dict[str, Run], name: str, phase: str
) -> None:
    run = runs[name]
    for own in OWN_WORK_PHASES:
        excess = run.excess(VICTIM, own, phase)
        assert abs(excess) <= TOLERANCE_SECONDS, own
    lateness = run.waited(VICTIM, phase) - run.waited(SLOW, phase)
    assert lateness == pytest.approx(DELAY_SECONDS, rel=0.3)


def test_a_rank_tells_when_its_gradients_arrive(runs: dict[str, Run]) -> None:
    for row in runs["ddp"].rows[SLOW]:
        assert row["first_arrival_ns"]
        assert row["last_arrival_ns"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_delay_inside_a_collective_is_synchronisation_on_both_sides(
    runs: dict[str, Run], name: str
) -> None:
    run = runs[name]
    excess = run.quickest(SLOW, "sync", "collective") - run.quickest(SLOW, "sync", "none")
    assert -TOLERANCE_SECONDS <= excess <= 0.3 * DELAY_SECONDS  # gloo itself takes its time
    assert run.quickest(VICTIM, "sync", "collective") >= DELAY_SECONDS - TOLERANCE_SECONDS


@pytest.mark.parametrize("name", STRATEGIES)
def test_phases_add_up_and_what_is_left_is_below_a_20th(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    for rows in run.rows:
        for row in rows:
            total = sum(row["phase_seconds"][phase] for phase in STEP_PHASES)
            assert total == pytest.approx(row["seconds"], rel=1e-4)
        undelayed = [row for row, (turn, _) in zip(rows, run.turns, strict=True) if turn != "other"]
        rest = sum(row["phase_seconds"]["other"] for row in undelayed)
        assert rest < 0.05 * sum(row["seconds"] for row in undelayed)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        strategy("ddp", {"all_reduce"}),
        strategy("fsdp2", {"all_gather", "reduce_scatter", "all_reduce"}),
        strategy("hsdp", {"all_gather", "reduce_scatter", "all_reduce"}),
        strategy("tp", {"all_gather", "reduce_scatter", "all_reduce"}),
        strategy("ep", {"all_to_all", "all_reduce"}),
        strategy("gpipe", {"send_recv", "all_reduce"}),
        strategy("1f1b", {"send_recv", "all_reduce"}),
        strategy("interleaved", {"send_recv", "all_reduce"}),
        strategy("1f1b-fsdp2", {"send_recv", "all_reduce", "all_gather", "reduce_scatter"}),
    ],
)
def test_collectives_are_counted_by_kind_with_bytes_and_seconds(
    runs: dict[str, Run], name: str, kinds: set[str]
) -> None:
    for state in runs[name].states:
        for counted in ("collectives", "collective_bytes", "collective_seconds"):
            assert {kind for kind, value in state[counted].items() if value} == kinds
        waited = sum(state["collective_seconds"].values())
        assert waited == pytest.approx(state["phase_seconds"]["sync"], rel=0.02)


def test_sizes_are_those_that_nccl_tests_would_print(runs: dict[str, Run]) -> None:
    width, steps = 64, WARM_UP + len(runs["fsdp2"].turns)
    block = 4 * (2 * width * 2 * width + 2 * width + width + 2 * width)
    state = runs["fsdp2"].states[0]
    assert state["collectives"]["reduce_scatter"] == 3 * steps
    assert state["collective_bytes"]["reduce_scatter"] == 3 * steps * block
    assert state["collective_bytes"]["all_gather"] % block == 0


@pytest.mark.parametrize("name", STRATEGIES)
def test_arrivals_less_the_earliest_are_a_ranks_delay(runs: dict[str, Run], name: str) -> None:
    slow, victim = runs[name].rows[SLOW], runs[name].rows[VICTIM]
    late = [
        (slow_row["last_arrival_ns"] - victim_row["last_arrival_ns"]) * 1e-9
        for slow_row, victim_row, (turn, _) in zip(slow, victim, runs[name].turns, strict=True)
        if turn in {"data", "forward", "backward"}
    ]
    assert statistics.median(late) == pytest.approx(DELAY_SECONDS, rel=0.3)
    assert all(row["first_arrival_ns"] for row in (*slow, *victim))


@pytest.mark.parametrize("name", [strategy(name) for name in ("gpipe", "1f1b", "interleaved")])
def test_operations_of_a_pipeline_have_the_names_of_the_published_traces(
    runs: dict[str, Run], name: str
) -> None:
    first, last = runs[name].operations
    recorded = {op for op, *_ in (*first, *last)}
    transfers = {f"{phase}-{end}" for phase in ("forward", "backward") for end in ("send", "recv")}
    assert recorded >= {"forward-compute", "backward-compute", *transfers}
    chunks = {chunk for op, _, chunk, _ in first if op == "forward-compute"}
    assert chunks == ({0, 2} if name == "interleaved" else {0})
    assert {mb for op, mb, _, _ in first if op == "backward-recv"} == {0, 1, 2, 3}


def test_synchronisation_of_parameters_and_gradients_has_its_names(runs: dict[str, Run]) -> None:
    recorded = {(op, kind) for op, _, _, kind in runs["fsdp2"].operations[0]}
    assert ("params-sync", "all_gather") in recorded
    assert ("grads-sync", "reduce_scatter") in recorded
    assert ("grads-sync", "all_reduce") in {
        (op, kind) for op, _, _, kind in runs["ddp"].operations[0]
    }
