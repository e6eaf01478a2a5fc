"""Faults of a step's own work: slow phases, numbers that are wrong, uneven data."""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.faults.kind import Fault, InStep, Kind, Step, Target, Value, act_before_step
from lockstep_trainer.layout.world import Layout
from lockstep_trainer.model.gpt import Mixture

DELAY = Value(name="delay", low=0, high=3600, default=0.1, sort="duration")


@contextmanager
def _forward(fault: Fault, target: Target) -> Step:
    delay = _OneDelay(fault, target)

    def delay_forward(module: nn.Module, _inputs: object) -> None:
        if module.training:  # an evaluation in this step stays quick
            delay()

    with target.middle_block.register_forward_pre_hook(delay_forward):
        yield


@contextmanager
def _backward(fault: Fault, target: Target) -> Step:
    delay = _OneDelay(fault, target)
    with target.middle_block.register_full_backward_pre_hook(lambda *_: delay()):
        yield


@contextmanager
def _optimizer(fault: Fault, target: Target) -> Step:
    delay = _OneDelay(fault, target)
    with target.optimizer.register_step_pre_hook(lambda *_: delay()):
        yield


class _OneDelay:
    """Sleeps at the first call alone: a step has a forward for each of its micro-batches."""

    def __init__(self, fault: Fault, target: Target) -> None:
        self._seconds, self._sleep = fault.values["delay"], target.sleep
        self._is_over = False

    def __call__(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._sleep(self._seconds)


_STEP_EFFECTS: dict[str, InStep] = {
    "loader": act_before_step(lambda fault, target: target.sleep(fault.values["delay"])),
    "forward": _forward,
    "backward": _backward,
    "optimizer": _optimizer,
}
SLOW_PHASES = tuple(_STEP_EFFECTS)
SLOW = tuple(
    Kind(name=f"slow-{phase}", in_step=in_step, values=(DELAY,))
    for phase, in_step in _STEP_EFFECTS.items()
)


@contextmanager
def _nan_gradient(_fault: Fault, target: Target) -> Step:
    """Sets one number of the gradient into the middle block to NaN, as a faulty chip may do."""

    def set_nan(_module: nn.Module, gradients: Any) -> Any:
        changed = gradients[0].clone()
        changed.view(-1)[0] = float("nan")
        return (changed, *gradients[1:])

    with target.middle_block.register_full_backward_pre_hook(set_nan):
        yield


@contextmanager
def _nan_loss(_fault: Fault, target: Target) -> Step:
    def make_nan(module: nn.Module, _inputs: Any, loss: Tensor) -> Tensor | None:
        # A product keeps the graph, so that the backward runs as usual.
        return loss * float("nan") if module.training else None

    with target.parts[-1].register_forward_hook(make_nan):
        yield


@contextmanager
def _diverge(fault: Fault, target: Target) -> Step:
    def raise_learning_rate(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= fault.values["factor"]

    with target.optimizer.register_step_pre_hook(raise_learning_rate):
        yield


NUMBERS = (
    Kind(name="nan-gradient", in_step=_nan_gradient),
    Kind(name="nan-loss", in_step=_nan_loss),
    Kind(
        name="diverge",
        in_step=_diverge,
        values=(Value(name="factor", low=0, high=1e9, default=100),),
    ),
)


_MAX_FACTOR = 64
_FACTOR = Value(name="factor", low=2, high=_MAX_FACTOR, default=2, sort="whole number")


def _skew_shards(fault: Fault, target: Target) -> None:
    """Repeats the rank's samples ``factor`` times: the same loss, more time and more tokens."""
    step, x, y = target.batch
    times = int(fault.values["factor"])
    target.batch = step, x.repeat(times, 1), y.repeat(times, 1)


@contextmanager
def _unbalanced_stage(fault: Fault, target: Target) -> Step:
    """Each block of the rank computes its forward ``factor`` times and uses one result."""

    def compute_more(block: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if block.training:
            with torch.no_grad():
                for _ in range(int(fault.values["factor"]) - 1):
                    # forward and not a call: a call would run this hook again.
                    block.forward(*inputs)

    with ExitStack() as hooks:
        for part in target.parts:
            for block in part.blocks.values():
                hooks.enter_context(block.register_forward_pre_hook(compute_more))
        yield


@contextmanager
def _unbalanced_experts(fault: Fault, target: Target) -> Step:
    """Adds a bias to the router's scores of one expert in every block."""
    expert, bias = int(fault.values["expert"]), fault.values["bias"]

    def add_bias(router: nn.Module, _inputs: Any, scores: Tensor) -> Tensor | None:
        if not router.training:
            return None
        biases = torch.zeros_like(scores)
        biases[:, expert] = bias
        return scores + biases

    mixtures = [m for part in target.parts for m in part.modules() if isinstance(m, Mixture)]
    with ExitStack() as hooks:
        for mixture in mixtures:
            hooks.enter_context(mixture.router.register_forward_hook(add_bias))
        yield


def _refuse_degrees(*axes: str) -> Callable[[Fault, TrainConfig, Layout], str | None]:
    """Refuses axes whose ranks run one computation together: more work on one would block all."""

    def refuses(_fault: Fault, _config: TrainConfig, layout: Layout) -> str | None:
        wide = [axis for axis in axes if layout.degrees[axis] > 1]
        return f"it is not possible with --{wide[0]} above 1" if wide else None

    return refuses


def _refuses_expert(fault: Fault, config: TrainConfig, _layout: Layout) -> str | None:
    if not config.experts:
        return "it needs --experts, one of which it favours"
    if fault.values["expert"] < config.experts:
        return None
    return f"expert {fault.values['expert']:g} is none of --experts {config.experts}, from 0 on"


IMBALANCES = (
    Kind(
        name="skewed-shards",
        in_step=act_before_step(_skew_shards),
        values=(_FACTOR,),
        refuses=_refuse_degrees("pp", "tp"),
    ),
    Kind(
        name="unbalanced-stage",
        in_step=_unbalanced_stage,
        values=(_FACTOR,),
        refuses=_refuse_degrees("tp", "ep"),
    ),
    Kind(
        name="unbalanced-experts",
        in_step=_unbalanced_experts,
        values=(
            Value(name="expert", low=0, high=1023, default=0, sort="whole number"),
            Value(name="bias", low=-1e6, high=1e6, default=10),
        ),
        refuses=_refuses_expert,
    ),
)
