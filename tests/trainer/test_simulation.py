"""Simulated ranks, read by the readers of real ones: the report, the agent, the page reader."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_cli.main import group
from lockstep_records.events.event import read_events
from lockstep_records.files.jobs import list_pages
from lockstep_records.page.layout import STEP_BUCKETS
from lockstep_records.page.reader import read_page, read_rows
from lockstep_trainer.commands.simulate import simulate as command
from lockstep_trainer.simulation.spec import Simulation
from lockstep_trainer.simulation.write_pages import SimulationResult, simulate, simulate_steps

CLOCKS = {"pid", "start_monotonic_ns", "start_wall_ns", "checksum", "job_id"}
TIMES = {"start_ns", "first_arrival_ns", "last_arrival_ns", "checksum"}


@pytest.fixture
def root() -> Iterator[Path]:
    """A root of jobs on the tmpfs that pages need, not created yet."""
    with tempfile.TemporaryDirectory(
        dir="/dev/shm", prefix="lockstep-test-"
    ) as folder:  # pages need a tmpfs
        yield Path(folder) / "root"


def fast(root: Path, job_id: str = "job", **fields: Any) -> SimulationResult:
    return simulate(Simulation(speed="fast", **fields), root=root, job_id=job_id)


def rows_of(result: SimulationResult) -> list[list[dict[str, Any]]]:
    return [read_rows(read_page(path)) for path in list_pages(result.folder / "0")]


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ("slow-loader:rank=201,step=40,until=end,delay=300ms", ("rank", [201], "data")),
        ("slow-backward:node=node-0007,step=1,until=100,factor=1.5",
         ("group", [*range(48, 56)], "backward")),
        ("slow-network:rank=3,step=1,until=end,delay=500ms", ("nobody", [], None)),
        (None, ("nobody", [], None)),
    ],
)  # fmt: skip
def test_the_report_names_the_fault_among_hundreds_of_ranks(
    root: Path, fault: str | None, verdict: tuple[str, list[int], str | None]
) -> None:
    result = fast(root, ranks=256, steps=120, fault=(fault,) if fault else ())
    report = CliRunner().invoke(group, ["report", str(result.folder), "--json", "-"])
    found = json.loads(report.stdout)["verdict"]
    assert (found["kind"], found["ranks"], found["phase"]) == verdict
    waits = [row["phase_seconds"]["sync"] for rows in rows_of(result)[:3] for row in rows]
    assert (min(waits) > 0.5) == ("network" in str(fault)), "a network delays all"


def test_all_ranks_leave_the_collective_at_once_and_the_phases_sum_to_the_step() -> None:
    simulation = Simulation(ranks=100, steps=30, jitter=0.1, tail=0.01, seed=4)
    sync = STEP_PHASES.index("sync")
    step_end = np.zeros(100)
    for step in simulate_steps(simulation):
        assert step.start == pytest.approx(step_end)
        assert step.last_arrival + step.phases[:, sync] == pytest.approx(
            np.full(100, step.sync_end), rel=1e-6
        )
        assert step.sync_end >= step.last_arrival.max()
        assert (step.start < step.first_arrival).all()
        assert (step.first_arrival < step.last_arrival).all()
        assert step.phases.sum(axis=1) == pytest.approx(step.seconds, rel=1e-6)
        step_end = step.start + step.phases.sum(axis=1)


def test_work_spreads_as_declared() -> None:
    simulation = Simulation(ranks=400, steps=100, jitter=0.03, unevenness=0.02, tail=0)
    forward = np.array(
        [step.phases[:, STEP_PHASES.index("forward")] for step in simulate_steps(simulation)]
    )
    level = np.log(forward).mean(axis=0)
    assert (np.log(forward) - level).std() == pytest.approx(0.03, rel=0.03)
    assert level.std() == pytest.approx(0.02, rel=0.15)
    assert np.exp(level.mean()) == pytest.approx(0.275, rel=0.01)


def test_spikes_are_as_rare_and_as_high_as_declared() -> None:
    simulation = Simulation(ranks=1000, steps=100, jitter=0, unevenness=0, tail=0.01)
    forward = np.array(
        [step.phases[:, STEP_PHASES.index("forward")] for step in simulate_steps(simulation)]
    )
    spikes = forward[forward > forward.min() * 1.001] / forward.min()
    assert len(spikes) / forward.size == pytest.approx(0.01, rel=0.15)
    assert spikes.min() >= 1.36
    assert spikes.max() <= 9.81
    assert np.median(spikes) == pytest.approx(2.09, rel=0.05)


def test_totals_are_the_sums_of_the_rows_to_the_last_bit(root: Path) -> None:
    result = fast(root, ranks=20, steps=50, tokens=10, samples=2)
    for path in list_pages(result.folder / "0"):
        page = read_page(path)
        rows, state = read_rows(page), page.state
        assert [row["step"] for row in rows] == list(range(1, 51))
        for phase in STEP_PHASES:
            assert state["phase_seconds"][phase] == sum(row["phase_seconds"][phase] for row in rows)
        assert state["step_seconds_sum"] == sum(row["seconds"] for row in rows)
        assert state["collective_seconds"]["all_reduce"] == sum(
            row["phase_seconds"]["sync"] for row in rows
        )
        counts = Counter(int(np.searchsorted(STEP_BUCKETS, row["seconds"])) for row in rows)
        assert counts == {n: c for n, c in enumerate(state["step_buckets"].values()) if c}
        assert (state["tokens"], state["samples"], state["steps"]) == (500, 100, 50)
        assert (page.phase, state["step"]) == ("done", 50)


def test_the_same_seed_writes_the_same_pages_and_another_seed_others(root: Path) -> None:
    def content(job_id: str, seed: int) -> list[Any]:
        result = fast(root, job_id, ranks=16, steps=20, seed=seed, layout="tp=4")
        pages = [read_page(path) for path in list_pages(result.folder / "0")]
        return [
            (
                {key: value for key, value in page.identity.items() if key not in CLOCKS},
                page.state["phase_seconds"],
                [
                    {key: value for key, value in row.items() if key not in TIMES}
                    for row in read_rows(page)
                ],
            )
            for page in pages
        ]

    assert content("first", 5) == content("second", 5)
    assert content("third", 6) != content("fourth", 5)


def test_pages_hold_node_local_rank_and_mesh_and_events_hold_the_outcome(root: Path) -> None:
    result = fast(root, ranks=12, ranks_per_node=4, steps=2, layout="dp=3,tp=4")
    last = read_page(list_pages(result.folder / "0")[-1]).identity
    assert (last["node"], last["local_rank"], last["world_size"]) == ("node-0003", 3, 12)
    assert last["mesh"] == {"dp": 2, "tp": 3}
    kinds = [event.kind for event in read_events(result.folder)]
    assert kinds == ["job_started", "attempt_started", "attempt_ended", "job_finished"]
    assert read_events(result.folder)[-1].fields["outcome"] == "succeeded"


def test_a_full_ring_holds_the_newest_steps(root: Path) -> None:
    result = fast(root, ranks=2, steps=50, rows=8)
    assert [row["step"] for row in rows_of(result)[1]] == list(range(43, 51))


class Clock:
    """A clock that moves only during sleeps."""

    def __init__(self, stop_after_seconds: float = 1e9) -> None:
        self.now_ns = 10**12
        self._stop_ns = self.now_ns + int(stop_after_seconds * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9) + 1
        if self.now_ns > self._stop_ns:
            raise KeyboardInterrupt


def test_at_wall_clock_speed_a_step_takes_its_time(root: Path) -> None:
    clock = Clock()
    result = simulate(
        Simulation(ranks=4, steps=10, step_time=2.0, jitter=0.0, unevenness=0.0),
        root=root,
        job_id="job",
        clock_ns=lambda: clock.now_ns,
        sleep=clock.sleep,
    )
    assert (clock.now_ns - 10**12) / 1e9 == pytest.approx(20.0, rel=0.01)
    assert result.max_lateness_seconds < 0.01


def test_while_a_slow_rank_computes_all_others_are_seen_waiting(root: Path) -> None:
    clock, phases = Clock(), dict[int, list[str]]()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        second = (clock.now_ns - 10**12) // 10**9
        pages = list_pages(root / "jobs" / "job" / "0")
        phases.setdefault(second, [read_page(path).phase for path in pages])

    simulate(
        Simulation(ranks=8, steps=1, fault=("slow-backward:rank=5,step=1,factor=9",)),
        root=root,
        job_id="job",
        clock_ns=lambda: clock.now_ns,
        sleep=sleep,
    )
    assert phases[0] == ["data"] * 8
    assert phases[4] == ["sync"] * 5 + ["data"] + ["sync"] * 2


def test_an_interrupted_job_is_cancelled_and_keeps_what_it_wrote(root: Path) -> None:
    clock = Clock(stop_after_seconds=3.5)
    result = simulate(
        Simulation(ranks=4, steps=10),
        root=root,
        job_id="job",
        clock_ns=lambda: clock.now_ns,
        sleep=clock.sleep,
    )
    assert (result.exit_code, result.rank_steps) == (130, 12)
    assert read_events(result.folder)[-1].fields["outcome"] == "cancelled"
    assert [len(rows) for rows in rows_of(result)] == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--fault", "slow-loader:rank=64,step=1,delay=5ms"], "rank 64 is outside the world of 64"),
        (["--fault", "slow-loader:node=node-9,step=1,delay=5ms"], "node-0001 to node-0008"),
        (["--fault", "slow-loader:rank=1,step=1"], "needs delay=100ms or factor=2, one of them"),
        (["--fault", "slow-loader:rank=1,step=1,delay=5ms,factor=2"], "one of them"),
        (
            ["--fault", "kill:rank=1,step=1"],
            "'kill' is not a kind of fault; the kinds are slow-loader",
        ),
        (["--fault", "slow-loader:rank=1,node=node-0001,step=1,delay=1s"], "leave one out"),
        (["--layout", "dp=3"], "--layout 'dp=3' on --ranks 64"),
        (["--layout", "xp=3"], "--layout 'xp=3' must be like dp=128,tp=8"),
        (["--step-time", "nan"], "'nan' is not a duration"),
        (["--jitter", "nan"], "nan must be a finite number"),
        (["--ranks", "100000", "--rows", "1000000"], "lower one of them or give another --dir"),
    ],
)
def test_invalid_input_is_refused_in_one_sentence_and_leaves_no_file(
    root: Path, arguments: list[str], sentence: str
) -> None:
    result = CliRunner().invoke(command, ["--dir", str(root), *arguments])
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
    assert not root.exists()
