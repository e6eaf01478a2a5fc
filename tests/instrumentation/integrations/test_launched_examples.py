"""Examples whose packages may be missing, each under its own launcher, as the pages show them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from servers import free_port

from lockstep_records.files.jobs import page_path
from lockstep_records.page.reader import read_page, read_rows

REPOSITORY = Path(__file__).parents[3]
JOB_ID, STEPS = "job-a", 40
PHASES = ("data", "forward", "backward", "sync", "optimizer")
PACKAGES = {
    "deepspeed_engine": "deepspeed",
    "megatron_timers": "megatron",
    "ray_train": "ray",
    "torchft_loop": "torchft",
    "torchtitan_metrics": "torchtitan",
}
# What needs a GPU runs by a script that replaces that need.
CPU_LAUNCHERS = {"torchtitan_metrics": Path("bench/examples/torchtitan_on_cpu.py")}


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def torchrun(script: Path, num_ranks: int = 2) -> list[str]:
    port = str(free_port())
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks))
    return python(*launcher, "--master-port", port, str(script))


@contextmanager
def lighthouse() -> Iterator[str]:
    """The process at which torchft's replica groups meet; yields its address."""
    address = f"127.0.0.1:{free_port()}"
    program = Path(sys.executable).with_name("torchft_lighthouse")
    command = [str(program), "--min_replicas", "1", "--join_timeout_ms", "2000", "--bind", address]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://{address}"
    finally:
        server.kill()
        server.wait()


def run_all(commands: list[tuple[list[str], dict[str, str]]], root: Path, out: Path) -> None:
    """Runs commands beside each other, each with variables of its own, and waits for all."""
    shared = os.environ | {
        "LOCKSTEP_DIR": str(root),
        "LOCKSTEP_JOB_ID": JOB_ID,
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [*command, "--steps", str(STEPS), "--out", str(out)],
            env=shared | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command, variables in commands
    ]
    deadline = time.monotonic() + 200
    try:
        texts = [p.communicate(timeout=deadline - time.monotonic())[0] for p in processes]
    finally:
        for process in processes:
            process.kill()
    for process, text in zip(processes, texts, strict=True):
        assert process.returncode == 0, text[-3000:]
        assert "training goes on" not in text, text


@pytest.mark.distributed
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", PACKAGES)
def test_every_step_of_every_rank_has_its_phases(name: str, root: Path, tmp_path: Path) -> None:
    if find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    script = REPOSITORY / CPU_LAUNCHERS.get(name, Path("docs/examples", f"{name}.py"))
    if name == "torchft_loop":
        with lighthouse() as address:
            environment = {"TORCHFT_LIGHTHOUSE": address}
            groups = [{"REPLICA_GROUP_ID": str(group)} | environment for group in range(2)]
            run_all([(torchrun(script, 1), group) for group in groups], root, tmp_path)
    elif name == "ray_train":
        run_all([(python(str(script)), {})], root, tmp_path)
    else:
        run_all([(torchrun(script), {})], root, tmp_path)
    for rank in range(2):
        page = read_page(page_path(root, JOB_ID, 0, rank))
        assert (page.phase, page.identity["world_size"]) == ("done", 2)
        assert page.state["internal_errors"] == 0
        assert page.state["steps"] >= STEPS - 1
        for row in read_rows(page):
            assert [phase for phase in PHASES if not row["phase_seconds"][phase] > 0] == []
    if name in {"deepspeed_engine", "megatron_timers"}:
        assert read_page(page_path(root, JOB_ID, 0, 0)).state["checkpoints"]["ok"] == 2
