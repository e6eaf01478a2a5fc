"""A rank that is late in one phase of the step: it sleeps there, once a step."""

from contextlib import contextmanager

from torch import nn

from lockstep_trainer.faults.kind import Fault, InStep, Kind, Step, Target, Value, act_before_step

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
KINDS = tuple(
    Kind(name=f"slow-{phase}", in_step=in_step, values=(DELAY,))
    for phase, in_step in _STEP_EFFECTS.items()
)
