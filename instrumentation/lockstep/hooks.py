"""Finds forward, backward and optimizer by hooks on what the user already has.

Among several ranks the end of the local backward comes from the autograd engine: a pre-hook on the
node of the model's output queues a callback that runs when the last local gradient is ready, in DDP
before the reducer waits for the others; a second callback, queued by the first, runs when it has
waited. FSDP2 works in a callback of its own, queued before the second, so its backward ends there
too. One process alone waits for nobody: ``backward`` marks it from outside, at a tenth of the cost.

Nothing here holds the model: it goes when its owner lets it go, as it would without us.
"""

import sys
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from lockstep import backward, waits
from lockstep.buckets import BucketWatch
from lockstep.monitor import Monitor
from lockstep.phases import BACKWARD, FORWARD, NOT_WAITING, OPTIMIZER, OTHER

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


def _is_alone() -> bool:
    return not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def _is_sharded(model: torch.nn.Module) -> bool:
    """Whether FSDP2 shards a part of the model; who never loaded FSDP2 need not do so for us."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(part, fsdp.FSDPModule) for part in model.modules())


class StepHooks:
    """Hooks on one model that mark the phases of a monitor.

    Args:
        monitor: who is told.
        model: what the loop calls, compiled or not.
        calls: whether a call of the model is the forward; not so under a pipeline's schedule,
            which tells of its chunks itself.
    """

    def __init__(self, monitor: Monitor, model: torch.nn.Module, *, calls: bool = True) -> None:
        self._monitor = monitor
        self._interrupted = NOT_WAITING
        self._buckets: BucketWatch | None = None
        inner = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        self._sharded = _is_sharded(inner)
        self._marked_before: int | None = None  # backwards seen from outside at the last forward
        if isinstance(inner, DistributedDataParallel):
            self._buckets = BucketWatch(monitor, ref(inner))
        elif not calls:
            return
        self._from_outside = self._buckets is None and _is_alone()
        if self._from_outside:
            backward.listen(monitor)
        if model._compiled_call_impl is not None:  # noqa: SLF001  # hooks would be compiled too
            self._wrap_compiled(model)
        else:
            model.register_forward_pre_hook(self._forward_begins, prepend=True)
            model.register_forward_hook(self._forward_ended)

    def _wrap_compiled(self, model: Any) -> None:
        """Puts the hooks around a call that ``model.compile()`` has compiled with its hooks."""
        compiled = model._compiled_call_impl  # noqa: SLF001  # its only name

        def call(*args: Any, **kwargs: Any) -> Any:
            self._forward_begins()
            output = compiled(*args, **kwargs)
            self._forward_ended(None, None, output)
            return output

        model._compiled_call_impl = call  # noqa: SLF001  # its only name

    def _forward_begins(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._monitor.enter(FORWARD)

    def _forward_ended(self, _module: Any, _inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        node = _graph_node(output)
        if node is None or (self._from_outside and self._is_marked()):
            return
        node.register_prehook(self._backward_begins)

    def _is_marked(self) -> bool:
        """Whether this backward will be marked from outside, as far as the last one tells."""
        marked = backward.calls()
        self._from_outside = marked != self._marked_before
        self._marked_before = marked
        return self._from_outside

    def _backward_begins(self, *_: Any) -> None:
        waits.this_thread_too()
        self._monitor.enter(BACKWARD)
        _queue_callback(self._last_gradient_ready)

    def _last_gradient_ready(self) -> None:
        if self._buckets is not None and self._buckets.synchronises():
            self._interrupted = waits.begin()
            _queue_callback(self._gradients_complete)
        elif self._sharded:
            _queue_callback(self._backward_ended)
        else:
            self._monitor.enter(OTHER)

    def _gradients_complete(self) -> None:
        assert self._buckets is not None
        self._buckets.step_done()
        if self._interrupted == NOT_WAITING:
            self._monitor.enter(OTHER)
            return
        calls, size_bytes = self._buckets.num_buckets, self._buckets.size_bytes
        told: dict[str, Any] = {"calls": calls, "op": "grads-sync", "ranks": self._buckets.ranks}
        waits.end(OTHER, "all_reduce", size_bytes, **told)

    def _backward_ended(self) -> None:
        self._monitor.enter(OTHER)


def watch_optimizer(monitor: Monitor, optimizer: torch.optim.Optimizer) -> None:
    """Marks the steps of an optimizer."""

    def begins(*_: Any) -> None:
        monitor.enter(OPTIMIZER)

    def ended(*_: Any) -> None:
        monitor.enter(OTHER)

    optimizer.register_step_pre_hook(begins)
    optimizer.register_step_post_hook(ended)
