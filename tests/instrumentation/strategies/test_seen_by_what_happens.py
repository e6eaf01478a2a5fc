"""Loops of any style have their phases without a line of their own: what is wrapped, what is called
past ``__call__``, closures, handles, evaluations, optimizers that nobody gave."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .watched import rows_in, watched

SLEEP_SECONDS = 0.02
STEPS = 24
SETTLED = 9  # steps until the monitor has settled on where phases begin


class Slow(nn.Module):
    """A layer that takes its time, and a loss by another name than forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(SLEEP_SECONDS)
        return self.layer(batch)  # type: ignore[no-any-return]  # torch's types

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        result = self.layer(batch)
        time.sleep(SLEEP_SECONDS)
        return result.sum()  # type: ignore[no-any-return]  # torch's types


class Fabric(nn.Module):
    """As Fabric's: any method of the module inside runs through its own forward module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._forward_module, self._original_module = module, module

    def training_step(self, batch: torch.Tensor) -> Any:
        return self._forward_module(batch)


class Home(nn.Module):
    """A wrapper of somebody's own."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def run(self, batch: torch.Tensor) -> Any:
        return self.module(batch)


CALLS: dict[str, tuple[Callable[[nn.Module], Any], Callable[[Any, torch.Tensor], Any]]] = {
    "plain": (lambda model: model, lambda model, batch: model(batch)),
    "past __call__": (lambda model: model, lambda model, batch: model.forward(batch)),
    "of another method": (lambda model: model, lambda model, batch: model.loss(batch)),
    "fabric": (Fabric, lambda model, batch: model.training_step(batch)),
    "own wrapper": (Home, lambda model, batch: model.run(batch)),
    "ddp": (DistributedDataParallel, lambda model, batch: model(batch)),
    "ddp past __call__": (DistributedDataParallel, lambda model, batch: model.forward(batch)),
}


@pytest.mark.usefixtures("single_rank_group")
@pytest.mark.parametrize("call", CALLS)
def test_a_forward_is_seen_whatever_is_called(call: str, root: Path) -> None:
    wrap, run = CALLS[call]
    model = wrap(Slow())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watched(root, model)
    for _ in range(STEPS):
        run(model, torch.ones(2, 4)).sum().backward()
        optimizer.step()
        monitor.step()
    monitor.close()
    for row in rows_in(root)[SETTLED:]:
        # Another method's own time before its first module cannot be seen.
        is_inside = call != "past __call__"
        assert not is_inside or row["phase_seconds"]["forward"] >= SLEEP_SECONDS
        assert row["phase_seconds"]["forward"] > 0
        assert row["phase_seconds"]["optimizer"] > 0


def test_what_begins_inside_a_closure_or_a_block_returns_to_the_optimizer(root: Path) -> None:
    model = Slow()
    monitor = watched(root, model)

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            result = super().step(closure)
            with monitor.phase("sync"):
                pass
            time.sleep(SLEEP_SECONDS)
            return result

    optimizer = Own(model.parameters(), lr=0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)
        monitor.step()
    monitor.close()
    for row in rows_in(root):
        assert row["phase_seconds"]["optimizer"] >= SLEEP_SECONDS
        assert row["phase_seconds"]["forward"] >= SLEEP_SECONDS
        assert row["phase_seconds"]["other"] < SLEEP_SECONDS


@pytest.mark.usefixtures("single_rank_group")
def test_an_evaluation_is_seen_by_eval_without_gradients(root: Path) -> None:
    model = DistributedDataParallel(Slow())
    monitor = watched(root, model)
    for step in range(4):
        if step == 2:
            model.module.eval()
            with torch.no_grad():
                model.module(torch.ones(2, 4))
                model(torch.ones(2, 4))
            model.module.training = True
        model(torch.ones(2, 4)).sum().backward()
        monitor.step()
    monitor.close()
    seconds = [row["phase_seconds"] for row in rows_in(root)]
    assert [parts["eval"] >= 2 * SLEEP_SECONDS for parts in seconds] == [False, False, True, False]
    assert all(parts["forward"] >= SLEEP_SECONDS for parts in seconds)
    # Of three forwards two are the evaluation's: no clock of a busy machine tells more.
    assert seconds[2]["forward"] < seconds[2]["eval"]


def test_a_forward_without_gradients_ends_with_its_call(root: Path) -> None:
    model = Slow()
    monitor = watched(root, model)
    for _ in range(STEPS):
        with torch.no_grad():
            model(torch.ones(2, 4))
            time.sleep(SLEEP_SECONDS)  # an environment
        model(torch.ones(2, 4)).sum().backward()
        monitor.step()
    monitor.close()
    for row in rows_in(root):
        assert row["phase_seconds"]["other"] >= SLEEP_SECONDS
        assert row["phase_seconds"]["forward"] >= 2 * SLEEP_SECONDS


@pytest.mark.usefixtures("single_rank_group")
def test_the_wait_for_a_handle_is_synchronisation(root: Path) -> None:
    model = Slow()
    monitor = watched(root, model)
    # A group of one rank has no collectives replaced; those of several have.
    from lockstep.patches.install import install  # noqa: PLC0415  # as the watch of several ranks

    install("collectives")
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        monitor.enter_phase("optimizer")
        dist.all_reduce(torch.ones(1 << 20), async_op=True).wait()
        monitor.step()
    monitor.close()
    assert all(row["phase_seconds"]["sync"] > 0 for row in rows_in(root))
