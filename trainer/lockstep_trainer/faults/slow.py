"""A rank that is late in one phase of the step: it sleeps there, once a step."""

from contextlib import contextmanager

from torch import nn

from lockstep_trainer.config import SLOW_PHASES
from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Step, Target, Value


@contextmanager
def _loader(fault: Fault, target: Target) -> Step:
    target.sleep(fault.values["ms"] / 1000)
    yield


@contextmanager
def _forward(fault: Fault, target: Target) -> Step:
    lose = _Once(fault, target)

    def before(module: nn.Module, _inputs: object) -> None:
        if module.training:
            lose()

    with target.middle_block.register_forward_pre_hook(before):
        yield


@contextmanager
def _backward(fault: Fault, target: Target) -> Step:
    lose = _Once(fault, target)
    with target.middle_block.register_full_backward_pre_hook(lambda *_: lose()):
        yield


@contextmanager
def _optimizer(fault: Fault, target: Target) -> Step:
    lose = _Once(fault, target)
    with target.optimizer.register_step_pre_hook(lambda *_: lose()):
        yield


class _Once:
    """Loses the time at the first call: a step has a forward for each of its micro-batches."""

    def __init__(self, fault: Fault, target: Target) -> None:
        self._seconds, self._sleep = fault.values["ms"] / 1000, target.sleep
        self._lost = False

    def __call__(self) -> None:
        if not self._lost:
            self._lost = True
            self._sleep(self._seconds)


_IN_STEP = {"loader": _loader, "forward": _forward, "backward": _backward, "optimizer": _optimizer}
KINDS = tuple(
    Kind(
        name=f"slow-{phase}",
        in_step=_IN_STEP[phase],
        values=(Value(name="ms", low=0, high=3_600_000, default=100),),
    )
    for phase in SLOW_PHASES
)
