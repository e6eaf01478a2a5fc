"""The backward: of one process, and of DDP, whose wait is told apart by graph, then by buckets."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import lockstep

from .watched import page_in, rows_in, watched

SETTLED_STEPS = 10
BACKWARD_SECONDS = 0.006


pytestmark = pytest.mark.usefixtures("single_rank_group")


class Slow(torch.autograd.Function):
    """Passes its input on; the backward takes its time."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        time.sleep(BACKWARD_SECONDS)
        return gradients[0]


class Net(nn.Module):
    """Its slow part comes late in the backward, after the last layer, which fills a bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 40_000)
        self.reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        slow: Any = Slow.apply
        x = slow(x)
        out: Tensor = (
            checkpoint(self.last, x, use_reentrant=True) if self.reentrant else self.last(x)
        )
        return out


def train(monitor: lockstep.Monitor, model: nn.Module, steps: int) -> None:
    for _ in range(steps):
        model(torch.randn(2, 8)).square().mean().backward()
        monitor.step()


def quickest(rows: list[dict[str, Any]], phase: str) -> float:
    """A busy machine makes steps longer, and never one shorter."""
    return float(min(row["phase_seconds"][phase] for row in rows))


def test_a_settled_model_has_no_hook_on_its_graph_and_still_records_its_arrival(root: Path) -> None:
    model = DistributedDataParallel(Net())
    train(watched(root, model), model, 2 * SETTLED_STEPS)
    assert not model._forward_hooks
    rows = rows_in(root)[SETTLED_STEPS:]
    assert all(row["first_arrival_ns"] <= row["last_arrival_ns"] for row in rows)
    assert quickest(rows, "backward") >= BACKWARD_SECONDS > quickest(rows, "sync")


def test_only_the_parameter_that_completes_the_first_bucket_has_a_hook(root: Path) -> None:
    model = DistributedDataParallel(Net())
    train(watched(root, model), model, 2 * SETTLED_STEPS)
    parameters: list[tuple[str, Any]] = [*model.module.named_parameters()]
    hooked = [
        name for name, parameter in parameters if parameter._post_accumulate_grad_hooks is not None
    ]
    assert hooked in (["last.weight"], ["last.bias"])
    rows = rows_in(root)[SETTLED_STEPS:]
    ahead = [row["last_arrival_ns"] - row["first_arrival_ns"] for row in rows]
    assert min(ahead) >= BACKWARD_SECONDS * 1e9


def test_a_torch_without_bucket_statistics_stops_no_training(root: Path) -> None:
    model: Any = DistributedDataParallel(Net())
    monitor = watched(root, model)
    model._get_ddp_logging_data = lost_peer  # raises
    train(monitor, model, 2 * SETTLED_STEPS)
    assert page_in(root).state["internal_errors"] == 1


def test_without_the_order_of_gradients_the_graph_is_hooked_in_every_step(root: Path) -> None:
    model: Any = DistributedDataParallel(Net())
    monitor = watched(root, model)
    statistics = model._get_ddp_logging_data()
    model._get_ddp_logging_data = lambda: {"bucket_sizes": statistics["bucket_sizes"]}
    train(monitor, model, 2 * SETTLED_STEPS)
    assert model._forward_hooks
    rows = rows_in(root)
    assert all(row["last_arrival_ns"] for row in rows)
    assert quickest(rows, "backward") >= BACKWARD_SECONDS > quickest(rows, "sync")


def test_with_unused_parameters_the_graph_is_hooked_in_every_step(root: Path) -> None:
    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    train(watched(root, model), model, SETTLED_STEPS)
    assert model._forward_hooks
    assert all(row["last_arrival_ns"] for row in rows_in(root))


def test_backwards_that_begin_to_nest_are_told_by_their_last_gradient(root: Path) -> None:
    model = DistributedDataParallel(Net())
    monitor = watched(root, model)
    train(monitor, model, SETTLED_STEPS)
    model.module.reentrant = True
    train(monitor, model, SETTLED_STEPS)
    assert not model._forward_hooks
    rows = rows_in(root)[SETTLED_STEPS + 1 :]
    assert all(row["last_arrival_ns"] for row in rows)
    assert quickest(rows, "backward") >= BACKWARD_SECONDS > quickest(rows, "sync")


class Recomputed(nn.Module):
    """All of its layers are in reentrant checkpoints, so the reducer waits in an inner backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        slow: Any = Slow.apply
        for layer in self.layers:
            x = checkpoint(layer, slow(x), use_reentrant=True)
        return x


@pytest.mark.parametrize("static_graph", [False, True])
def test_the_wait_inside_a_reentrant_checkpoint_is_recorded(root: Path, static_graph: bool) -> None:
    model = DistributedDataParallel(Recomputed(), static_graph=static_graph)
    monitor = watched(root, model)
    for _ in range(2 * SETTLED_STEPS):
        model(torch.randn(2, 8, requires_grad=True)).square().mean().backward()
        monitor.step()
    rows = rows_in(root)[SETTLED_STEPS:]
    assert all(row["last_arrival_ns"] for row in rows)
    assert all(row["phase_seconds"]["sync"] > 0 for row in rows)
    assert quickest(rows, "backward") >= 2 * BACKWARD_SECONDS > quickest(rows, "sync")


def test_a_backward_that_is_not_marked_brings_the_hook_on_the_graph_back(root: Path) -> None:
    model = DistributedDataParallel(Net())
    monitor = watched(root, model)
    train(monitor, model, SETTLED_STEPS)
    engine: Any = torch.autograd.graph._engine_run_backward
    for _ in range(SETTLED_STEPS):
        loss = model(torch.randn(2, 8)).square().mean()
        engine(
            (loss,),
            (torch.ones_like(loss),),
            False,
            False,
            (),
            allow_unreachable=True,
            accumulate_grad=True,
        )
        monitor.step()
    assert model._forward_hooks
    rows = rows_in(root)[SETTLED_STEPS + 2 :]  # the forward after the first unmarked one detects it
    assert all(row["last_arrival_ns"] for row in rows)
    assert quickest(rows, "backward") >= BACKWARD_SECONDS > quickest(rows, "sync")


def test_a_backward_that_fails_in_its_wait_stays_in_synchronisation(root: Path) -> None:
    model = DistributedDataParallel(Net())
    monitor = watched(root, model)
    train(monitor, model, SETTLED_STEPS)
    queue: Any = torch.autograd.Variable._execution_engine.queue_callback
    before = page_in(root).state["collectives"]
    model.module.first.weight.register_hook(lambda _: queue(lost_peer))
    with pytest.raises(ConnectionError):
        train(monitor, model, 1)
    assert page_in(root).phase == "sync"
    monitor.step()
    assert page_in(root).state["collectives"] == before


def lost_peer() -> None:
    raise ConnectionError("as gloo raises it after its timeout")


def slow_model() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].register_full_backward_hook(lambda *_: time.sleep(BACKWARD_SECONDS))
    return model


def test_gradients_by_autograd_grad_count_as_backward(root: Path) -> None:
    model = slow_model()
    monitor = watched(root, model)
    for _ in range(SETTLED_STEPS):
        loss = model(torch.randn(2, 8)).square().mean()
        torch.autograd.grad(loss, list(model.parameters()))
        monitor.step()
    # The first step shows that backward() is not called; a hook on the graph marks the others.
    marked = [row["phase_seconds"]["backward"] for row in rows_in(root)][1:]
    assert len(marked) == SETTLED_STEPS - 1
    assert all(seconds >= BACKWARD_SECONDS for seconds in marked)


def test_a_backward_of_another_thread_does_not_count(root: Path) -> None:
    monitor = watched(root, slow_model())
    loss = slow_model()(torch.randn(2, 8)).square().mean()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    monitor.step()
    assert [row["phase_seconds"]["backward"] for row in rows_in(root)] == [0.0]


def test_a_backward_that_fails_ends_its_phase(root: Path) -> None:
    model = slow_model()
    monitor = watched(root, model)
    loss = model(torch.randn(2, 8)).square().mean()
    loss.backward()
    try:
        loss.backward()  # its graph is freed
    except RuntimeError:
        time.sleep(BACKWARD_SECONDS)
    monitor.step()
    (row,) = rows_in(root)
    assert row["phase_seconds"]["other"] >= BACKWARD_SECONDS
