"""Unevenly distributed work: a rank with more samples, a heavier stage, a favoured expert."""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.faults.kind import Fault, Kind, Step, Target, Value, act_before_step
from lockstep_trainer.layout.mesh import Layout
from lockstep_trainer.model.mixture import Mixture

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


KINDS = (
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
