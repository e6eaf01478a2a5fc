import math
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch

from lockstep_records.text.durations import format_duration
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.batches import Batch
from lockstep_trainer.faults.kinds import SLOW_PHASES
from lockstep_trainer.faults.parse import inject
from lockstep_trainer.layout.world import World
from lockstep_trainer.model.gpt import GPT, Mixture

DELAY_SECONDS = 0.05
STEPS = 5


@pytest.fixture(autouse=True)
def _single_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Job:
    """A model and its data, and the faults of a run of it."""

    def __init__(self, *faults: str, experts: int = 0, width: int = 16) -> None:
        torch.manual_seed(0)
        self.model = GPT(layers=4, width=width, heads=2, sequence=8, experts=experts)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.slept: list[float] = []
        self.config = TrainConfig(steps=STEPS, fault=faults, experts=experts)
        x = torch.randint(256, (2, 8))
        self.data: list[Batch] = [(step, x, x) for step in range(1, STEPS + 1)]

    def batches(self, *, sleeps: bool = False) -> Iterator[Batch]:
        sleep = time.sleep if sleeps else self.slept.append
        world, parts = World(), [self.model]
        yield from inject(self.config, world, parts, self.optimizer, self.data, sleep=sleep)

    def losses(self) -> list[float]:
        """Trains, and gives the loss of every step."""
        losses = []
        for _, x, y in self.batches():
            loss = self.model(x, y)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def median_seconds_by_phase(job: Job) -> dict[str, float]:
    spent: dict[str, list[float]] = {phase: [] for phase in SLOW_PHASES}
    steps = job.batches(sleeps=True)
    for _ in range(STEPS):
        times = [time.perf_counter()]
        _, x, y = next(steps)
        times.append(time.perf_counter())
        loss = job.model(x, y)
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        job.optimizer.step()
        times.append(time.perf_counter())
        for phase, (begin, end) in zip(SLOW_PHASES, pairwise(times), strict=True):
            spent[phase].append(end - begin)
    return {phase: statistics.median(seconds) for phase, seconds in spent.items()}


@pytest.mark.timing
@pytest.mark.parametrize("phase", SLOW_PHASES)
def test_the_delay_really_happens_in_its_phase_and_in_no_other(phase: str) -> None:
    median_seconds_by_phase(Job())  # torch's first steps are slow themselves
    slow = f"slow-{phase}:rank=0,step=1,until=end,delay={format_duration(DELAY_SECONDS)}"
    spent = median_seconds_by_phase(Job(slow))
    assert spent.pop(phase) >= DELAY_SECONDS
    assert max(spent.values()) < DELAY_SECONDS


def test_a_delay_in_the_backward_comes_before_the_last_gradient_is_ready() -> None:
    job = Job("slow-backward:rank=0,step=1")
    order: list[str] = []
    for name in ("blocks.3.norm_1.weight", "blocks.0.norm_1.weight", "places.weight"):
        parameter: Any = job.model.get_parameter(name)
        parameter.register_post_accumulate_grad_hook(
            lambda _, name=name: order.append(f"{name} after {len(job.slept)}")
        )
    steps = job.batches()
    _, x, y = next(steps)
    job.model(x, y).backward()
    assert order[0] == "blocks.3.norm_1.weight after 0"
    assert set(order[1:]) == {"blocks.0.norm_1.weight after 1", "places.weight after 1"}


def test_a_fault_is_announced_and_takes_effect_once_a_step_whatever_the_micro_batches(
    capfd: pytest.CaptureFixture[str],
) -> None:
    job = Job(
        "slow-forward:rank=0,step=2,until=4,delay=70ms", "slow-optimizer:rank=0,step=3,delay=30ms"
    )
    for _, x, y in job.batches():
        for _ in range(3):
            job.model(x, y).backward()
        job.optimizer.step()
    assert job.slept == [0.07, 0.07, 0.03]
    assert capfd.readouterr().err.splitlines() == [
        "fault: slow-forward rank=0 step=2",
        "fault: slow-forward rank=0 step=3",
        "fault: slow-optimizer rank=0 step=3",
    ]


def test_the_loss_is_nan_at_its_step_alone() -> None:
    job = Job("nan-loss:rank=0,step=2")
    losses = [job.model(x, y).item() for _, x, y in job.batches()]
    assert [step for step, loss in enumerate(losses, 1) if math.isnan(loss)] == [2]


def test_a_nan_gradient_makes_all_later_losses_nan() -> None:
    losses = Job("nan-gradient:rank=0,step=3").losses()
    assert losses[:3] == Job().losses()[:3]
    assert all(math.isnan(loss) for loss in losses[3:])


def test_a_diverging_learning_rate_drives_the_loss_up_from_its_step_on() -> None:
    healthy, losses = Job().losses(), Job("diverge:rank=0,step=2,factor=1000").losses()
    assert losses[:2] == healthy[:2]
    assert losses[-1] > losses[0] > healthy[-1]


def test_a_skewed_shard_is_more_samples_of_the_same_loss() -> None:
    job, healthy = Job("skewed-shards:rank=0,step=2,factor=3"), Job()
    assert [len(x) for _, x, _ in job.batches()] == [2, 6, 2, 2, 2]
    assert job.losses() == pytest.approx(healthy.losses())


def test_an_unbalanced_stage_computes_more_forwards_to_the_same_loss() -> None:
    job = Job("unbalanced-stage:rank=0,step=3,factor=4")
    ran: list[int] = []
    number = iter(range(1000))
    norm = job.model.get_submodule("blocks.1.norm_1")
    norm.register_forward_hook(lambda *_: ran.append(next(number)))
    counts = []
    for _, x, y in job.batches():
        job.model(x, y)
        counts.append(len(ran))
    assert [after - before for before, after in pairwise([0, *counts])] == [1, 1, 4, 1, 1]
    assert Job("unbalanced-stage:rank=0,step=3").losses() == Job().losses()


def test_a_favoured_expert_gets_every_byte_while_it_lasts() -> None:
    job = Job("unbalanced-experts:rank=0,step=3,expert=2,bias=50", experts=4)
    shares: list[float] = []
    mixture = next(module for module in job.model.modules() if isinstance(module, Mixture))
    mixture.experts.register_forward_pre_hook(
        lambda _, inputs: shares.append(float(inputs[1][2] / inputs[1].sum()))
    )
    for _, x, y in job.batches():
        job.model(x, y)
    assert shares[2] == 0.5  # one of each byte's two experts
    assert max(shares[0], shares[1], shares[3], shares[4]) < 0.5


def test_memory_really_runs_out_and_the_limit_is_lifted_afterwards() -> None:
    steps = Job("oom:rank=0,step=2").batches()
    next(steps)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        next(steps)
    assert len(torch.ones(1 << 28, dtype=torch.uint8)) == 1 << 28
