import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lockstep_records.events import OUT_OF_MEMORY, Event, read_events
from lockstep_trainer.checkpoints.files import find_newest
from lockstep_trainer.checkpoints.shards import read_all_tensors

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(150)]

STEPS = 12
TINY = (
    "--batch 2 --sequence 32 --layers 2 --width 32 --heads 2 --eval-windows 4 --log-every 1 "
    f"--steps {STEPS} --checkpoint-every 4 --stop-check-every 1 --timeout 20"
)
TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node 2"
LAUNCHED = "-m lockstep_cli.main train --nproc-per-node 2 --job-id tried"


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="lockstep-test-") as folder:
        yield Path(folder)


def start(launcher: str, folder: Path, more: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a job to its end, its checkpoints in a folder."""
    where = f"--checkpoint-dir {folder / 'checkpoints'}"
    if "lockstep_cli" in launcher:
        where += f" --dir {folder}"
    return subprocess.run(
        [sys.executable, *launcher.split(), *TINY.split(), *where.split(), *more.split()],
        env={**os.environ, "OMP_NUM_THREADS": "1", "LOCKSTEP_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def final_state(folder: Path) -> dict[str, torch.Tensor]:
    newest, passed_over = find_newest(folder / "checkpoints")
    assert newest is not None
    assert (newest.step, passed_over) == (STEPS, [])
    return read_all_tensors(newest.path)


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def ends(folder: Path) -> tuple[Event, list[int | None]]:
    """The end of a job and the exit codes of its ranks."""
    events = read_events(folder / "jobs" / "tried")
    codes = [event.fields["exit_code"] for event in events if event.kind == "rank_ended"]
    return events[-1], codes


@pytest.fixture(scope="module")
def uninterrupted(memory: Path) -> dict[str, torch.Tensor]:
    ended = start(LAUNCHED, memory / "whole")
    assert ended.returncode == 0, ended.stderr
    return final_state(memory / "whole")


@pytest.mark.parametrize(
    "launcher",
    [
        f"{LAUNCHED} --max-restarts 1",
        f"{TORCHRUN} --max-restarts 1 -m lockstep_trainer",
    ],
    ids=["lockstep train", "torchrun"],
)
def test_a_job_with_a_killed_rank_starts_again_and_ends_with_the_same_bits(
    memory: Path, uninterrupted: dict[str, torch.Tensor], launcher: str
) -> None:
    folder = memory / f"killed-{'torch' in launcher.split()[1]}"
    ended = start(launcher, folder, "--fault kill:rank=1,step=7")
    assert ended.returncode == 0, ended.stderr
    assert "resuming from" in ended.stderr
    assert "step-00000004" in ended.stderr
    assert_same(final_state(folder), uninterrupted)


@pytest.mark.parametrize("fault", ["preempt", "preempt-job"])
def test_a_job_told_to_stop_saves_leaves_and_ends_later_with_the_same_bits(
    memory: Path, uninterrupted: dict[str, torch.Tensor], fault: str
) -> None:
    folder = memory / fault
    ended = start(LAUNCHED, folder, f"--checkpoint-async --fault {fault}:rank=1,step=6")
    last, codes = ends(folder)
    assert ended.returncode == 75, ended.stderr
    assert (last.fields["outcome"], codes) == ("preempted", [75, 75])
    newest, _ = find_newest(folder / "checkpoints")
    assert newest is not None
    assert 6 <= newest.step < STEPS
    assert f"told to stop, left after step {newest.step}" in ended.stderr
    again = start(LAUNCHED.replace("tried", "again"), folder, "--resume")
    assert again.returncode == 0, again.stderr
    assert_same(final_state(folder), uninterrupted)


def test_a_rank_out_of_memory_says_so_and_has_an_exit_code_of_its_own(memory: Path) -> None:
    folder = memory / "oom"
    ended = start(LAUNCHED, folder, "--fault oom:rank=1,step=2")
    last, codes = ends(folder)
    assert ended.returncode == 1
    assert last.fields["outcome"] == "failed"
    assert codes[0] == OUT_OF_MEMORY
    assert "lockstep: rank 1 on cpu ran out of host memory, asking for" in ended.stderr


def test_a_run_goes_on_with_another_number_of_ranks_and_the_same_global_batch(
    memory: Path, uninterrupted: dict[str, torch.Tensor]
) -> None:
    folder = memory / "fewer"
    four = LAUNCHED.replace("--nproc-per-node 2", "--nproc-per-node 4")
    first = start(four, folder, "--strategy fsdp2 --batch 1 --fault kill:rank=3,step=7")
    assert first.returncode == 1
    alone = LAUNCHED.replace("--nproc-per-node 2", "--nproc-per-node 1").replace("tried", "again")
    refused = start(alone, folder, "--resume")
    assert refused.returncode == 2
    assert "was made with global_batch 4 and this run has 2" in refused.stderr
    assert start(alone, folder, "--resume --batch 4").returncode == 0
    state = final_state(folder)
    for name, tensor in uninterrupted.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-3, atol=1e-4)
