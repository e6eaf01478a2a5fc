"""Finds forward, backward and optimizer by hooks on what the user already has.

A forward is marked by ``forward``, a backward from outside, by ``backward``. Where DDP waits at its
end, a callback of the autograd engine tells when the last local gradient is ready, before the
reducer waits for the others; the gradient that completes the first bucket queues it. Until that
gradient is known, and for loops that come to their backward by another way, a pre-hook stands on
the node of the model's output: it is hung anew in every forward and costs ten times as much.

Nothing here holds the model: it goes when its owner lets it go, as it would without us.
"""

import copyreg
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.compiler import is_dynamo_compiling
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from lockstep.guard import guarded
from lockstep.monitor.live import LiveMonitor
from lockstep.recorder import operation_listeners as operations_tap
from lockstep.recorder.native import compiled
from lockstep.recorder.phases import BACKWARD, NOT_WAITING, OPTIMIZER, OTHER
from lockstep.recorder.recorder import Ignored, PhaseHook
from lockstep.strategies import backward, waits
from lockstep.strategies.ddp_buckets import BucketWatch
from lockstep.strategies.forward import new_forward, stand_in_front

_backwards = backward.listener
_queue_callback = Variable._execution_engine.queue_callback  # noqa: SLF001  # DDP's own way in
_SURE = 4  # steps in succession whose backward was marked from outside


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


class StepHooks:
    """Hooks on one model that mark the phases of a monitor.

    Args:
        monitor: who is told.
        model: what the loop calls, compiled or not.
        calls: whether a call of the model is the forward; not so under a pipeline's schedule,
            which tells of its chunks itself.
    """

    # What the hooks of a copied or saved model find: a copy is not watched.
    _begins: Callable[[], None] = Ignored()
    _on_graph = False
    _outside = _sure = 0
    _buckets: BucketWatch | None = None
    _handle: RemovableHandle | None = None
    _wait: Any = None  # in C, once there is nothing left to learn

    def __init__(self, monitor: LiveMonitor, model: torch.nn.Module, *, calls: bool = True) -> None:
        self._recorder, self.fail = monitor.recorder, monitor.fail
        self._forward = new_forward(self._recorder, self._choose)
        self._begins = self._forward
        self._interrupted = NOT_WAITING
        inner = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        if isinstance(inner, DistributedDataParallel):
            self._buckets = BucketWatch(ref(inner), self._arriving)
        elif not calls:
            return
        if calls:
            backward.listen(self._recorder)
        # Alone it has nothing inside that is to be told apart.
        self._on_graph = self._forward.on_graph = self._buckets is not None or not _is_alone()
        self._sure = _SURE if self._on_graph else 1
        self._model = ref(model)
        self._compiled = model._compiled_call_impl is not None  # noqa: SLF001  # its only name
        if self._compiled:
            self._wrap_compiled(model)
            return
        if not stand_in_front(model, self._begins):
            model.register_forward_pre_hook(self._forward_begins, prepend=True)
        if self._on_graph:
            self._hang()

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (StepHooks,)  # type: ignore[attr-defined]  # typeshed lacks it

    def _wrap_compiled(self, model: Any) -> None:
        """Stands around a call that ``model.compile()`` has compiled, with its hooks."""
        compiled = model._compiled_call_impl  # noqa: SLF001  # its only name

        def call(*args: Any, **kwargs: Any) -> Any:
            self._forward_begins()
            output = compiled(*args, **kwargs)
            if self._on_graph:
                self._forward_ended(None, None, output)
            return output

        model._compiled_call_impl = call  # noqa: SLF001  # its only name

    def _forward_begins(self, *_: Any) -> None:
        if not is_dynamo_compiling():
            self._begins()

    def _choose(self, outside: bool) -> None:  # C calls it
        """Leaves the graph once backwards are marked from outside; comes back when one was not."""
        self._outside = self._outside + 1 if outside else 0
        blind = self._buckets is not None and (_backwards.nests or not self._buckets.arrives)
        if blind or self._outside < self._sure:
            self._hang()
            return
        self._stand_on_graph(here=False)
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _stand_on_graph(self, *, here: bool) -> None:
        self._on_graph = self._forward.on_graph = here
        if self._wait is not None:
            self._wait.on_graph = here

    def _hang(self) -> None:
        self._stand_on_graph(here=True)
        model = self._model()
        if self._handle is None and model is not None and not self._compiled:
            self._handle = model.register_forward_hook(self._forward_ended)

    def _forward_ended(self, _module: Any, _inputs: Any, output: Any) -> None:
        if is_dynamo_compiling() or not self._on_graph:
            return
        node = _graph_node(output)
        if node is not None:
            node.register_prehook(self._backward_begins)

    def _backward_begins(self, *_: Any) -> None:
        waits.this_thread_too()
        self._recorder.enter_code(BACKWARD)
        _queue_callback(self._last_gradient_ready)

    def _arriving(self) -> Callable[[torch.Tensor], None]:
        """What the gradient that completes DDP's first bucket is to call."""
        if compiled is None or self._buckets is None:
            return self._arrived
        calls, size_bytes, ranks = self._buckets.told
        self._wait = compiled.GradientWait(
            recorder=self._recorder,
            backwards=_backwards,
            model=self._buckets.model,
            queue=_queue_callback,
            taps=vars(operations_tap),
            arrived_otherwise=self._first_bucket_ready,
            begins_otherwise=self._ddp_waits,
            kind="all_reduce",
            calls=calls,
            size_bytes=size_bytes,
            ranks=ranks,
        )
        self._wait.on_graph = self._on_graph
        arrive: Callable[[torch.Tensor], None] = self._wait.arrive
        return arrive

    def _arrived(self, _parameter: torch.Tensor) -> None:
        if self._buckets is not None and self._buckets.synchronises():
            self._first_bucket_ready()

    def _first_bucket_ready(self) -> None:
        self._recorder.first_arrival()
        if self._on_graph:
            return
        if _backwards.nests:  # and then a callback may come before the others' gradients
            self._hang()
            return
        if not _backwards.inside:
            self._recorder.enter_code(BACKWARD)
        _queue_callback(self._ddp_waits)

    def _last_gradient_ready(self) -> None:
        if self._buckets is not None and self._buckets.synchronises():
            self._ddp_waits()
        else:
            self._at_end(self._backward_ended)

    def _ddp_waits(self) -> None:
        self._interrupted = waits.begin()
        self._at_end(self._gradients_complete)

    @staticmethod
    def _at_end(ended: Callable[[], None]) -> None:
        if _backwards.inside:
            _backwards.ended.append(ended)
        else:
            _queue_callback(ended)  # after those of DDP and FSDP2

    @guarded
    def _learn(self) -> None:
        if self._buckets is not None:
            self._buckets.step_done()

    def _gradients_complete(self) -> None:
        assert self._buckets is not None
        if not self._buckets.settled and self._recorder.on:
            self._learn()
        if self._interrupted == NOT_WAITING:
            self._recorder.enter_code(OTHER)
            return
        calls, size_bytes, ranks = self._buckets.told
        waits.end(OTHER, "all_reduce", size_bytes, calls=calls, op="grads-sync", ranks=ranks)

    def _backward_ended(self) -> None:
        self._recorder.enter_code(OTHER)


def watch_optimizer(monitor: LiveMonitor, optimizer: torch.optim.Optimizer) -> PhaseHook:
    """Marks the steps of an optimizer; gives what does before each."""
    before = monitor.recorder.phase_hook(OPTIMIZER)
    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(monitor.recorder.phase_hook(OTHER))
    return before
