"""Which rank a process is: by its group, by each launcher's variables, or not known yet."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import lockstep
from lockstep.identity.ranks import RankPosition, find_position
from lockstep.patches import layers
from lockstep_records.page.reader import read_page

from ..rank_page import ENVIRONMENT, page_of
from ..uninstalled import uninstall

VARIABLES = {
    "torchrun": {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"},
    "Slurm": {
        "SLURM_PROCID": "3",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_ID": "0",
    },
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    },
    "MVAPICH": {
        "MV2_COMM_WORLD_RANK": "3",
        "MV2_COMM_WORLD_SIZE": "8",
        "MV2_COMM_WORLD_LOCAL_RANK": "1",
    },
    "MPI": {"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"},
}


@pytest.mark.parametrize("launcher", VARIABLES)
def test_a_rank_is_known_by_the_variables_of_each_launcher(launcher: str) -> None:
    position = find_position(VARIABLES[launcher])
    assert position == RankPosition(rank=3, world_size=8, local_rank=1, launcher=launcher)


def test_torchrun_inside_a_task_of_slurm_decides() -> None:
    slurm = VARIABLES["Slurm"] | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    position = find_position(slurm | VARIABLES["torchrun"])
    assert position is not None
    assert (position.rank, position.world_size, position.launcher) == (3, 8, "torchrun")


def test_a_batch_script_of_slurm_is_no_rank() -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77"}
    assert find_position(batch) == RankPosition()


@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1"},
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
        {"PMIX_RANK": "1"},
    ],
    ids=["Lightning", "an address", "PMIx"],
)
def test_a_rank_of_which_a_launcher_tells_a_part_is_unknown(variables: dict[str, str]) -> None:
    assert find_position(variables) is None


def test_a_rank_that_is_no_number_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="OMPI_COMM_WORLD_RANK='x' is not a whole number"):
        find_position(VARIABLES["Open MPI"] | {"OMPI_COMM_WORLD_RANK": "x"})


def test_a_step_of_slurm_is_its_job_on_all_nodes(root: Path) -> None:
    environment = VARIABLES["Slurm"] | {"SLURM_JOB_ID": "77"}
    lockstep.attach(root=root, environment=environment, rows=64).close()
    page = read_page(root / "jobs" / "77" / "0" / "rank-00003.page")
    assert page.identity["world_size"] == 8


@pytest.fixture(name="unknown_rank")
def _unknown_rank(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A process that Lightning has launched; gives the folder of its attempt."""
    for name in (*VARIABLES["torchrun"], "LOCKSTEP_FIRST_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("LOCKSTEP_JOB_ID", "job-a")
    uninstall()
    yield root / "jobs" / "job-a" / "0"
    if dist.is_initialized():
        dist.destroy_process_group()
    uninstall()


def init_one_rank(folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)


def test_a_loop_that_attaches_before_the_group_has_a_page_from_the_group_on(
    unknown_rank: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = torch.nn.Linear(4, 4)
    monitor: Any = lockstep.attach(model, root=root, rows=64)
    monitor.describe(flops_per_token=6.0)
    assert not monitor.enabled
    assert not unknown_rank.exists()
    init_one_rank(tmp_path)
    assert monitor.enabled
    wrapped = DistributedDataParallel(model)
    for (batch,) in monitor.prepare([(torch.ones(2, 4),)] * 3):
        wrapped(batch).sum().backward()
        monitor.step(samples=2)
    monitor.close()
    assert layers.BEGIN_ATTRIBUTE in vars(wrapped)
    page = read_page(unknown_rank / "rank-00000.page")
    assert page.phase == "done"
    assert page.state["steps"] == 3
    assert page.periodic["flops_per_token"] == 6.0
    assert capsys.readouterr().err == ""


def test_a_loop_that_never_makes_a_group_has_a_page_from_its_first_step_on(
    unknown_rank: Path, root: Path
) -> None:
    monitor = lockstep.attach(root=root, rows=64)
    monitor.enter_phase("forward")
    with monitor.phase("eval"):
        pass
    assert not unknown_rank.exists()
    monitor.step(samples=1)
    monitor.step(samples=1)
    monitor.close()
    assert read_page(unknown_rank / "rank-00000.page").state["steps"] == 2


def test_a_loop_that_ends_before_its_rank_is_known_leaves_nothing(
    unknown_rank: Path, root: Path, tmp_path: Path
) -> None:
    lockstep.attach(root=root, rows=64).close()
    init_one_rank(tmp_path)
    assert not unknown_rank.exists()


def test_the_first_rank_says_the_job_and_its_report_where_no_launcher_of_ours_does(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = ENVIRONMENT | {"RANK": "0"}
    lockstep.attach(root=root, environment=first, rows=64).close()
    line = f"lockstep: job job-a; its report: lockstep report {root}/jobs/job-a\n"
    assert capsys.readouterr().err == line
    lockstep.attach(root=root, environment=ENVIRONMENT, rows=64).close()
    lockstep.attach(root=root, environment=first | {"LOCKSTEP_FIRST_ATTEMPT": "5"}, rows=64).close()
    assert capsys.readouterr().err == ""


def refusal(root: Path, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    assert not lockstep.attach(root=root, environment=ENVIRONMENT, rows=64).enabled
    (record,) = caplog.records
    return record.getMessage()


def test_a_second_attach_in_one_process_is_refused_by_that_reason(
    root: Path, caplog: pytest.LogCaptureFixture, monitor: lockstep.Monitor
) -> None:
    assert monitor.enabled
    assert "this process has attached before, as rank 1 of job 'job-a'" in refusal(root, caplog)


def test_a_job_id_whose_rank_another_process_holds_is_refused_by_that_reason(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ready, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        lockstep.attach(root=root, environment=ENVIRONMENT, rows=64)
        os.write(ready[1], b"1")
        os.read(go_on[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        assert page_of(root).identity["pid"] == child
        assert f"job id 'job-a' is in use: its rank 1, process {child}" in refusal(root, caplog)
    finally:
        os.write(go_on[1], b"1")
        os.waitpid(child, 0)
