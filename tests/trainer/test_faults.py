import math
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

from lockstep_trainer.config import SLOW_PHASES, TrainConfig
from lockstep_trainer.data import Batch
from lockstep_trainer.faults import Fault, fault_of, inject
from lockstep_trainer.model import GPT

DELAY_SECONDS = 0.05
STEPS = 5


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def parts() -> tuple[GPT, torch.optim.Optimizer, list[Batch]]:
    torch.manual_seed(0)
    model = GPT(layers=4, width=16, heads=2, sequence=8)
    x = torch.randint(256, (2, 8))
    batches = [(step, x, x) for step in range(1, STEPS + 1)]
    return model, torch.optim.AdamW(model.parameters()), batches


def median_seconds_by_phase(
    model: GPT, optimizer: torch.optim.Optimizer, batches: Iterable[Batch]
) -> dict[str, float]:
    spent: dict[str, list[float]] = {phase: [] for phase in SLOW_PHASES}
    steps = iter(batches)
    for _ in range(STEPS):
        marks = [time.perf_counter()]
        _, x, y = next(steps)
        marks.append(time.perf_counter())
        loss = model(x, y)
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        optimizer.step()
        marks.append(time.perf_counter())
        for place, phase in enumerate(SLOW_PHASES):
            spent[phase].append(marks[place + 1] - marks[place])
    return {phase: statistics.median(seconds) for phase, seconds in spent.items()}


@pytest.mark.parametrize("phase", SLOW_PHASES)
def test_the_delay_really_happens_in_its_phase_and_in_no_other(phase: str) -> None:
    model, optimizer, batches = parts()
    median_seconds_by_phase(model, optimizer, batches)  # torch's first steps are slow themselves
    fault = Fault(delay_seconds=DELAY_SECONDS, phase=phase)
    spent = median_seconds_by_phase(model, optimizer, inject(fault, [model], optimizer, batches))
    assert spent.pop(phase) >= DELAY_SECONDS
    assert max(spent.values()) < DELAY_SECONDS


def test_a_delay_in_the_backward_comes_before_the_last_gradient_is_ready() -> None:
    model, optimizer, batches = parts()
    order: list[str] = []
    fault = Fault(delay_seconds=DELAY_SECONDS, phase="backward")
    faulty = inject(fault, [model], optimizer, batches, sleep=lambda _: order.append("delay"))
    for name in ("blocks.3.norm_1.weight", "blocks.0.norm_1.weight", "places.weight"):
        parameter: Any = model.get_parameter(name)
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    _, x, y = next(iter(faulty))
    model(x, y).backward()
    assert order[:2] == ["blocks.3.norm_1.weight", "delay"]
    assert set(order[2:]) == {"blocks.0.norm_1.weight", "places.weight"}


def test_a_fault_begins_and_ends_at_its_steps() -> None:
    fault = Fault(delay_seconds=0.1, phase="loader", from_step=5, until_step=8)
    assert [s for s in range(1, 12) if fault.delay_at(s, "loader")] == [5, 6, 7]
    assert not any(fault.delay_at(s, "forward") for s in range(1, 12))


def test_only_the_named_rank_is_slow() -> None:
    config = TrainConfig(slow_rank=2, slow_ms=250)
    assert fault_of(config, 2).delay_seconds == 0.25
    assert fault_of(config, 1).delay_seconds is None
    assert fault_of(TrainConfig(), 0).delay_seconds is None


def test_an_evaluation_is_not_slowed() -> None:
    model, optimizer, batches = parts()
    slept: list[float] = []
    fault = Fault(delay_seconds=0.1, phase="forward", nan_at=1)
    _, x, y = next(iter(inject(fault, [model], optimizer, batches, sleep=slept.append)))
    model.eval()
    assert math.isfinite(model(x, y).item())
    assert slept == []


def test_the_loss_is_not_a_number_at_its_step_alone() -> None:
    model, optimizer, batches = parts()
    fault = Fault(delay_seconds=None, nan_at=2)
    losses = [model(x, y).item() for _, x, y in inject(fault, [model], optimizer, batches)]
    assert [step for step, loss in enumerate(losses, 1) if math.isnan(loss)] == [2]
