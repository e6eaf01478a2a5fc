"""The hooks on real torch loops, in one process and over gloo: each delay is found in its phase."""

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep
import lockstep_cli.main
from lockstep_records.page.reader import read_page, read_rows

from .sleep_ledger import SleepLedger

DELAY_SECONDS = 0.02

PHASES = ("data", "forward", "backward", "optimizer", "other")

# Plain DDP loops, one for each phase among the arguments: rank 1 has a known delay in that phase.
LOOP = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import lockstep

torch.set_num_threads(1)
dist.init_process_group("gloo")
slow = dist.get_rank() == 1

def delay(location):
    if slow and phase == location:
        time.sleep(0.02)

class Loader:
    def __iter__(self):
        for _ in range(24):
            delay("data")
            yield torch.randn(16, 128)

for phase in sys.argv[1:]:
    net = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(6)])
    net[2].register_forward_hook(lambda *_: delay("forward"))
    net[2].register_full_backward_hook(lambda *_: delay("backward"))
    model = DDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_post_hook(lambda *_: delay("optimizer"))
    environment = {**os.environ, "LOCKSTEP_JOB_ID": phase}
    monitor = lockstep.attach(model, optimizer, environment=environment)
    for batch in monitor.prepare(Loader()):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        delay("other")
        monitor.step(loss=loss.detach(), tokens=16)
    monitor.close()
    dist.barrier()  # gloo may abort a rank that tears down while its peer has already gone
dist.destroy_process_group()
"""


def typical(rows: list[dict[str, Any]], phase: str) -> float:
    """The lower quartile after the first steps: a busy machine makes steps longer, not shorter."""
    values = sorted(row["phase_seconds"][phase] for row in rows[8:])
    return float(values[len(values) // 4])


def launch(root: Path, script: Path, *arguments: str, restarts: int = 0) -> int:
    """Exit status of a job of two ranks."""
    command = [sys.executable, "-m", "lockstep_cli.main", "run", "--nproc-per-node", "2"]
    command += ["--job-id", "job-a", "--dir", str(root), "--max-restarts", str(restarts)]
    return subprocess.run([*command, str(script), *arguments], check=False, timeout=100).returncode


@pytest.mark.timing
def test_one_process_records_forward_backward_and_optimizer_without_a_call_in_the_loop(
    root: Path,
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    sleeps = SleepLedger()
    model[1].register_forward_hook(lambda *_: sleeps.sleep(0.003))
    model[1].register_full_backward_hook(lambda *_: sleeps.sleep(0.005))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: sleeps.sleep(0.004))
    monitor = lockstep.attach(model, optimizer, root=root, environment={"LOCKSTEP_JOB_ID": "one"})
    for _ in range(40):
        with sleeps.within("forward"):
            loss = model(torch.randn(4, 64)).sum()
        with sleeps.within("backward"):
            loss.backward()
        with sleeps.within("optimizer"):
            optimizer.step()
        monitor.step(loss=loss.detach())
        sleeps.end_step()
    rows = read_rows(read_page(root / "jobs" / "one" / "0" / "rank-00000.page"))
    sleeps.check(rows, "forward", "backward", "optimizer")
    assert typical(rows, "sync") == 0
    assert all(row["last_arrival_ns"] is None for row in rows)


def test_a_watched_model_is_freed_when_its_owner_drops_it(root: Path) -> None:
    model = torch.nn.Linear(8, 8)
    monitor = lockstep.attach(model, root=root, environment={"LOCKSTEP_JOB_ID": "one"}, rows=8)
    model(torch.randn(2, 8)).sum().backward()
    monitor.step()
    reference = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert reference() is None
    finally:
        gc.enable()


def test_a_loss_computed_outside_the_model_and_dict_outputs_work(root: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, batch: torch.Tensor) -> dict[str, Any]:
            return {"name": "x", "logits": self.linear(batch)}

    model = Net()
    monitor = lockstep.attach(model, root=root, environment={"LOCKSTEP_JOB_ID": "one"})
    model(torch.randn(2, 8))["logits"].square().mean().backward()
    with torch.no_grad():
        model(torch.randn(2, 8))
    monitor.step()
    (row,) = read_rows(read_page(root / "jobs" / "one" / "0" / "rank-00000.page"))
    assert row["phase_seconds"]["backward"] > 0


@pytest.fixture(scope="module")
def delayed(module_memory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of jobs, one for each phase that was delayed; one pair of ranks runs them all."""
    script = tmp_path_factory.mktemp("loop") / "loop.py"
    script.write_text(LOOP)
    assert launch(module_memory, script, *PHASES) == 0
    return module_memory


@pytest.mark.timing
@pytest.mark.distributed
@pytest.mark.timeout(120)
@pytest.mark.parametrize("phase", PHASES)
def test_a_delay_of_one_rank_is_found_in_its_own_phase_and_as_wait_on_the_other(
    delayed: Path, phase: str
) -> None:
    attempt = delayed / "jobs" / phase / "0"
    fast, slow = (read_rows(read_page(attempt / f"rank-0000{rank}.page")) for rank in (0, 1))
    excess = typical(slow, phase) - typical(fast, phase)
    assert excess == pytest.approx(DELAY_SECONDS, abs=0.008)
    lateness = typical(fast, "sync") - typical(slow, "sync")
    assert lateness == pytest.approx(DELAY_SECONDS, abs=0.01)
    assert all(row["last_arrival_ns"] for row in slow)
    assert all(row["first_arrival_ns"] for row in slow[8:])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing.py"], "program 'nothing.py' is not a file"),
        (["--nproc-per-node", "0", "x"], "'0' is not a number of ranks"),
        (["--job-id", "a b", "-m", "this"], "job id 'a b' must be"),
        (["--nnodes", "2", "-m", "this"], "--nnodes 2 needs --endpoint"),
        (["--endpoint", "nowhere", "-m", "this"], "--endpoint 'nowhere' is not HOST:PORT"),
        (["--serve", "here:99999", "-m", "this"], "--serve 'here:99999' is not HOST:PORT"),
        (["--hang-timeout", "nan", "-m", "this"], "'nan' is not a duration"),
        (["--cluster", "a\nb", "-m", "this"], "cluster 'a\\nb' must hold printable"),
        (["--project", "p" * 500, "-m", "this"], "takes more than"),
        (["--dir", "/proc/nothing", "-m", "this"], "cannot be created"),
    ],
)
def test_invalid_flags_of_run_end_with_one_sentence_and_exit_status_two(
    arguments: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["lockstep", "run", *arguments])
    with pytest.raises(SystemExit) as ended:
        lockstep_cli.main.main()
    assert ended.value.code == 2
    stderr = capsys.readouterr().err
    assert sentence in stderr
    assert stderr.count("\n") == 1
