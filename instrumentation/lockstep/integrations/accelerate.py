"""Accelerate: one ``with`` instruments a hand-written loop that uses an Accelerator.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with watched(accelerator, model, optimizer) as watch:
        for batch in watch.batches(loader):
            with accelerator.accumulate(model):
                ...

A step ends with the step of the optimizer inside Accelerate's wrapper, which makes none while
gradients accumulate. ``backward``, ``save_state`` and ``load_state`` of the Accelerator are timed.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch

import lockstep
from lockstep.integrations.batches import num_samples, num_tokens
from lockstep.recorder.interface import Ignored

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")
Method = Callable[..., Any]


class EvaluationHook:
    """Enters the phase of evaluation before each forward of a model that does not train."""

    def __init__(self, monitor: lockstep.Monitor) -> None:
        self._monitor = monitor

    def __call__(self, module: torch.nn.Module, *_: Any) -> None:
        """Called before each forward."""
        if not module.training:
            self._monitor.enter_phase("eval")

    def __reduce__(self) -> tuple[type[Ignored], tuple[()]]:
        # A copied or saved model is not watched.
        return Ignored, ()


class Watch:
    """Reports a loop over an Accelerator to a monitor; built by ``watched``.

    Attributes:
        monitor: for phases that the loop enters itself, such as ``phase("eval")``.
    """

    def __init__(self, accelerator: "Accelerator", monitor: lockstep.Monitor) -> None:
        self._accelerator, self.monitor = accelerator, monitor
        self._loss: Any = None
        self._samples = self._tokens = 0

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """The same batches; the wait for each counts as data."""
        for batch in self.monitor.prepare(loader):
            self._samples += num_samples(batch)
            self._tokens += num_tokens(batch)
            yield batch

    def backward(self, method: Method, loss: torch.Tensor, **options: Any) -> None:
        """The Accelerator's backward; its losses add up to the loss of the step."""
        share = loss.detach() / self._accelerator.gradient_accumulation_steps
        self._loss = share if self._loss is None else self._loss + share
        method(loss, **options)

    def save(self, method: Method, *args: Any, **options: Any) -> Any:
        """The Accelerator's save_state, counted as a checkpoint."""
        with self.monitor.checkpoint():
            return method(*args, **options)

    def load(self, method: Method, *args: Any, **options: Any) -> Any:
        """The Accelerator's load_state, counted as a restore."""
        with self.monitor.phase("restore"):
            return method(*args, **options)

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Ends the step."""
        self.monitor.step(
            loss=self._loss,
            learning_rate=optimizer.param_groups[0]["lr"],
            samples=self._samples,
            tokens=self._tokens,
        )
        self._loss, self._samples, self._tokens = None, 0, 0


@contextmanager
def watched(
    accelerator: "Accelerator",
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    **options: Any,
) -> Iterator[Watch]:
    """Instruments the block; an exception in it makes the attempt failed.

    Args:
        accelerator: its methods are timed inside the block.
        model: result of ``accelerator.prepare``.
        optimizer: one or several results of ``accelerator.prepare``; the last one's step ends the
            step.
        options: for ``lockstep.attach``, such as mesh, root or environment.
    """
    wrapped = optimizer if isinstance(optimizer, Sequence) else (optimizer,)
    # Accelerate's wrapper calls step() in each micro-batch; the optimizer inside knows the step.
    inner = [getattr(wrapper, "optimizer", wrapper) for wrapper in wrapped]
    watch = Watch(accelerator, lockstep.attach(model, inner, **options))
    timed = {"backward": watch.backward, "save_state": watch.save, "load_state": watch.load}
    for name, timer in timed.items():
        method = getattr(accelerator, name)
        setattr(accelerator, name, functools.wraps(method)(functools.partial(timer, method)))
    # Of the module inside: DDP marks its own forward after its hooks.
    hooks = (
        inner[-1].register_step_post_hook(watch.optimizer_stepped),
        accelerator.unwrap_model(model).register_forward_pre_hook(EvaluationHook(watch.monitor)),
    )
    failed = True
    try:
        yield watch
        failed = False
    finally:
        for hook in hooks:
            hook.remove()
        # The timed methods are attributes of the object; without them those of its class are back.
        for name in timed:
            delattr(accelerator, name)
        watch.monitor.close(failed=failed)
