"""Finds the boundaries of a DDP or single-process step by hooks on what the user already has.

The end of the local backward comes from the autograd engine: a pre-hook on the node of the model's
output queues a callback that runs when the last local gradient is ready, in DDP before the reducer
waits for the others; a second callback, queued by the first, runs when it has waited.

Nothing here holds the model: it goes when its owner lets it go, as it would without us.
"""

from typing import Any
from weakref import ref

import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from lockstep.buckets import BucketWatch
from lockstep.monitor import Monitor
from lockstep.phases import BACKWARD, FORWARD, OPTIMIZER, OTHER

_queue_callback = Variable._execution_engine.queue_callback  # noqa: SLF001  # DDP's own way in


def _graph_node(output: Any) -> Any:
    """The autograd node of the first tensor in a model's output that has one."""
    if isinstance(output, torch.Tensor):
        return output.grad_fn
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        return next((node for part in output if (node := _graph_node(part)) is not None), None)
    return None


class StepHooks:
    """Hooks on one model and its optimizers that mark the phases of a monitor."""

    def __init__(self, monitor: Monitor, model: torch.nn.Module) -> None:
        self._monitor = monitor
        self._buckets: BucketWatch | None = None
        if isinstance(model, DistributedDataParallel):
            self._buckets = BucketWatch(monitor, ref(model))
        model.register_forward_pre_hook(self._forward_begins)
        model.register_forward_hook(self._forward_ended)

    def watch_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Marks the optimizer's step."""
        optimizer.register_step_pre_hook(self._optimizer_begins)
        optimizer.register_step_post_hook(self._optimizer_ended)

    def _forward_begins(self, *_: Any) -> None:
        self._monitor.enter(FORWARD)

    def _forward_ended(self, _module: Any, _inputs: Any, output: Any) -> None:
        node = _graph_node(output)
        if node is not None:
            node.register_prehook(self._backward_begins)

    def _backward_begins(self, *_: Any) -> None:
        self._monitor.enter(BACKWARD)
        _queue_callback(self._last_gradient_ready)

    def _last_gradient_ready(self) -> None:
        if self._buckets is not None and self._buckets.synchronises():
            self._monitor.arrive()
            _queue_callback(self._gradients_complete)
        else:
            self._monitor.enter(OTHER)

    def _gradients_complete(self) -> None:
        assert self._buckets is not None
        self._buckets.step_done()
        self._monitor.complete(self._buckets.num_buckets, self._buckets.size_bytes)

    def _optimizer_begins(self, *_: Any) -> None:
        self._monitor.enter(OPTIMIZER)

    def _optimizer_ended(self, *_: Any) -> None:
        self._monitor.enter(OTHER)
