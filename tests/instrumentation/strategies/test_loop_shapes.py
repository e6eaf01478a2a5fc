"""Loops of every shape: accumulation, several models, compiled and recomputed ones, evaluation."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import lockstep
from lockstep.patches import waits

from ..sleep_ledger import SleepLedger
from .watched import page_in, rows_in, watched

FORWARD_SECONDS, BACKWARD_SECONDS, OPTIMIZER_SECONDS = 0.004, 0.007, 0.003
STEPS = 12
sleeps = SleepLedger()


@pytest.fixture(autouse=True)
def _no_sleeps_of_other_tests() -> None:
    sleeps.reset()


class Sleeps(torch.autograd.Function):
    """Passes its input on; forward and backward take their known time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        sleeps.sleep(FORWARD_SECONDS)
        ctx.save_for_backward(x)  # so that there is something to recompute
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        assert ctx.saved_tensors
        sleeps.sleep(BACKWARD_SECONDS)
        return gradients[0]


class Net(nn.Module):
    def __init__(self, recompute: bool | None = None) -> None:
        super().__init__()
        self.first, self.last, self.recompute = nn.Linear(8, 8), nn.Linear(8, 8), recompute

    def sleep_layer(self, x: Tensor) -> Tensor:
        disable: Any = torch.compiler.disable
        slow: Callable[[Tensor], Tensor] = disable(Sleeps.apply)
        return slow(x)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.recompute is None:
            x = self.sleep_layer(x)
        else:
            x = checkpoint(self.sleep_layer, x, use_reentrant=self.recompute)
        out: Tensor = self.last(x)
        return out


def quickest(root: Path, phase: str) -> float:
    """Seconds of the quickest step in a phase, after the first ones."""
    return min(float(row["phase_seconds"][phase]) for row in rows_in(root)[2:])


def slow_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: sleeps.sleep(OPTIMIZER_SECONDS))
    return optimizer


def in_a_batch(*models: Any) -> None:
    with sleeps.within("forward"):
        loss = sum(model(torch.randn(2, 8)).square().mean() for model in models)
    with sleeps.within("backward"):
        loss.backward()


def train(monitor: lockstep.Monitor, model: Any, *optimizers: Any, passes: int = 1) -> None:
    for _ in range(STEPS):
        for _ in range(passes):
            in_a_batch(model)
        for optimizer in optimizers:
            with sleeps.within("optimizer"):
                optimizer.step()
        monitor.step()
        sleeps.end_step()


@pytest.mark.timing
def test_gradients_added_up_over_batches_count_every_forward_and_backward(root: Path) -> None:
    model = Net()
    monitor = watched(root, model)
    train(monitor, model, passes=3)
    sleeps.check(rows_in(root), "forward", "backward")


@pytest.mark.timing
def test_two_forwards_before_one_backward_work(root: Path) -> None:
    model = Net()
    monitor = watched(root, model)
    for _ in range(STEPS):
        in_a_batch(model, model)
        monitor.step()
        sleeps.end_step()
    sleeps.check(rows_in(root), "forward", "backward")


@pytest.mark.timing
def test_several_models_and_optimizers_are_one_step(root: Path) -> None:
    models = [Net(), Net()]
    optimizers = [slow_optimizer(model) for model in models]
    monitor = watched(root, models, optimizers)
    for _ in range(STEPS):
        for model, optimizer in zip(models, optimizers, strict=True):
            in_a_batch(model)
            with sleeps.within("optimizer"):
                optimizer.step()
        monitor.step()
        sleeps.end_step()
    sleeps.check(rows_in(root), "forward", "backward", "optimizer")


@pytest.mark.timing
@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputing_counts_as_backward(root: Path, reentrant: bool) -> None:
    model = Net(recompute=reentrant)
    monitor = watched(root, model)
    train(monitor, model)
    sleeps.check(rows_in(root), "forward", "backward")


def compiled_before(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def compiled_in_place(model: nn.Module) -> Any:
    model.compile(backend="eager")
    return model


def compiled_blocks(model: Net) -> Any:
    model.first.compile(backend="eager")
    model.last.compile(backend="eager")
    return model


# Dynamo looks at .grad of what passes a graph break, watched or not.
of_dynamo = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.mark.timing
@of_dynamo
@pytest.mark.parametrize("compile_model", [compiled_before, compiled_in_place, compiled_blocks])
def test_a_compiled_model_or_its_blocks_are_seen_as_others_are(
    root: Path, compile_model: Callable[[nn.Module], Any]
) -> None:
    model = compile_model(Net())
    optimizer = slow_optimizer(model)
    monitor = watched(root, model, optimizer)
    train(monitor, model, optimizer)
    sleeps.check(rows_in(root), "forward", "backward", "optimizer")


def test_a_model_compiled_after_it_is_watched_trains_on_without_a_graph_break(root: Path) -> None:
    model = nn.Linear(8, 8)
    monitor = watched(root, model)
    train(monitor, torch.compile(model, backend="eager", fullgraph=True))
    assert len(rows_in(root)) == STEPS


@pytest.mark.usefixtures("single_rank_group")
def test_under_no_sync_nothing_arrives_and_the_last_batch_does(root: Path) -> None:
    model = DistributedDataParallel(Net())
    monitor = watched(root, model)
    for step in range(STEPS):
        with model.no_sync():
            model(torch.randn(2, 8)).square().mean().backward()
        if step % 2:
            model(torch.randn(2, 8)).square().mean().backward()
        monitor.step()
    rows = rows_in(root)
    assert [row["last_arrival_ns"] is not None for row in rows] == [False, True] * (STEPS // 2)
    assert all(row["phase_seconds"]["backward"] >= BACKWARD_SECONDS for row in rows)


@of_dynamo
@pytest.mark.usefixtures("single_rank_group")
def test_a_compiled_ddp_model_arrives_too(root: Path) -> None:
    model = torch.compile(DistributedDataParallel(Net()), backend="eager")
    monitor = watched(root, model)
    train(monitor, model)
    assert all(row["last_arrival_ns"] for row in rows_in(root))


def test_an_evaluation_holds_its_phase_and_its_waits(root: Path) -> None:
    model = Net()
    monitor = watched(root, model)
    with monitor.phase("eval"), torch.no_grad():
        model(torch.randn(2, 8))
        waits.end(waits.begin(), "all_reduce", 8)
    monitor.step()
    (row,) = rows_in(root)
    assert row["phase_seconds"]["eval"] >= FORWARD_SECONDS
    assert row["phase_seconds"]["forward"] == row["phase_seconds"]["sync"] == 0


def test_a_wait_returns_to_the_phase_that_it_interrupted(root: Path) -> None:
    monitor = watched(root, nn.Linear(8, 8))
    monitor.enter_phase("forward")
    interrupted = waits.begin()
    time.sleep(0.01)
    waits.end(waits.begin(), "broadcast", 8)  # one inside another counts once
    waits.end(interrupted, "all_gather", 64)
    time.sleep(0.01)
    monitor.enter_phase("backward")
    monitor.step()
    (row,) = rows_in(root)
    assert row["phase_seconds"]["forward"] >= 0.01
    assert row["phase_seconds"]["sync"] >= 0.01
    state = page_in(root).state
    assert state["collectives"]["all_gather"] == 1
    assert state["collectives"]["broadcast"] == 0
    assert state["collective_bytes"]["all_gather"] == 64


def test_waits_of_another_thread_do_not_count(root: Path) -> None:
    monitor = watched(root, nn.Linear(8, 8))

    def background() -> None:
        waits.end(waits.begin(), "broadcast", 8)

    thread = threading.Thread(target=background)
    thread.start()
    thread.join()
    monitor.step()
    (row,) = rows_in(root)
    assert row["phase_seconds"]["sync"] == 0


def test_an_exception_in_a_backward_does_not_end_the_recording(root: Path) -> None:
    model = nn.Linear(8, 8)
    monitor = watched(root, model)
    interrupted = waits.begin()  # as an error between arrival and completion leaves it
    del interrupted
    train(monitor, model)
    assert quickest(root, "forward") > 0
    assert quickest(root, "sync") == 0


def test_a_schedule_of_another_kind_is_logged_and_training_goes_on(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: Any = "1f1b"
    monitor = lockstep.attach(
        nn.Linear(8, 8), schedule=wrong, root=root, environment={"LOCKSTEP_JOB_ID": "one"}, rows=8
    )
    monitor.step()
    assert "schedule str is none of torch.distributed.pipelining" in caplog.text
    assert len(rows_in(root)) == 1
