"""The hooks on real torch loops in one process, and flags of `lockstep run` that are refused."""

import gc
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


def typical(rows: list[dict[str, Any]], phase: str) -> float:
    """The lower quartile after the first steps: a busy machine makes steps longer, not shorter."""
    values = sorted(row["phase_seconds"][phase] for row in rows[8:])
    return float(values[len(values) // 4])


@pytest.mark.timing
def test_one_process_records_forward_backward_and_optimizer_without_a_call(root: Path) -> None:
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
