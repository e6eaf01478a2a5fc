"""Marks forward, backward and optimizer by hooks on what the user already has.

``Forward`` marks a forward, ``patches.backward`` a backward, from outside. DDP waits at
the end of its backward: a callback of the autograd engine tells when the last local gradient is
ready, before the reducer waits for the other ranks. The gradient that completes the first bucket
queues that callback. Until that gradient is known, and for loops whose backward is not
``torch.autograd.backward``, a pre-hook on the node of the model's output does.

Nothing here holds the model: it goes when its owner lets it go, as it would without us.
"""

import copyreg
import functools
import threading
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch.compiler import is_dynamo_compiling
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from lockstep.guard import Parts, part_of
from lockstep.monitor.live import LiveMonitor
from lockstep.patches import backward, layers, loop_calls, waits
from lockstep.patches.install import install, install_on
from lockstep.patches.layers import called_by, ddp_around, ddp_in
from lockstep.patches.points import ORIGINAL, QUEUE_CALLBACK, find_or_report
from lockstep.patches.table import COMPILED_CALL, DDP_FORWARD
from lockstep.recorder import operation_listeners as operations_tap
from lockstep.recorder.interface import Ignored, PhaseHook, StepRecorder
from lockstep.recorder.native import compiled
from lockstep.recorder.phases import BACKWARD, EVAL, FORWARD, NOT_WAITING, OPTIMIZER, OTHER
from lockstep.strategies.ddp_buckets import BucketWatch


class Forward:
    """Marks the beginning of a forward; ``lockstep._native`` holds the same in C.

    Where that decides between the listener of backwards and a hook on the graph, it calls
    ``choose`` with whether a backward was marked from outside since the last forward.

    Attributes:
        on_graph: whether a hook on the graph marks the backward, in place of the listener.
        evaluates: whether forwards without gradients are evaluation; until one has them.
    """

    def __init__(
        self,
        recorder: StepRecorder,
        backwards: backward.Listener,
        phase: int,
        choose: Callable[[bool], None],
        trains: Callable[[], bool],
    ) -> None:
        self._recorder, self._backwards, self._phase = recorder, backwards, phase
        self._choose, self._trains = choose, trains
        self._calls_before = -1  # backwards counted at the last forward
        self.on_graph = self.evaluates = False

    def __call__(self) -> None:
        """Called when a forward begins."""
        self.evaluates = self.evaluates and not self._trains()
        if self.evaluates:
            self._recorder.enter_code(EVAL)
            return
        self._recorder.enter_code(self._phase)
        calls, calls_before = self._backwards.calls, self._calls_before
        self._calls_before = calls
        if calls == calls_before or self.on_graph:
            self._choose(calls != calls_before)

    def __reduce__(self) -> tuple[type[Ignored], tuple[()]]:
        return Ignored, ()


def new_forward(recorder: StepRecorder, choose: Callable[[bool], None]) -> Forward:
    """A mark of forwards for this recorder, in C where it was compiled."""
    kind = Forward if compiled is None else compiled.Forward
    forward: Forward = kind(recorder, backward.listener, FORWARD, choose, torch.is_grad_enabled)
    return forward


def call_before_ddp_forward(model: torch.nn.Module, begin: Callable[[], object]) -> bool:
    """Calls ``begin`` first in each forward of DDP, but where dynamo traces it.

    Returns:
        False, and nothing is done, for other models, on a torch whose DDP begins in another way,
        and where the user's own hooks would come before it.
    """
    if not isinstance(model, DistributedDataParallel) or model._forward_pre_hooks:  # noqa: SLF001  # torch has no other way to ask
        return False
    install("ddp")
    if not hasattr(getattr(DistributedDataParallel, DDP_FORWARD.attribute, None), ORIGINAL):
        return False
    setattr(model, layers.BEGIN_ATTRIBUTE, begin)
    return True


_backwards = backward.listener
_queue_callback: Any = find_or_report(QUEUE_CALLBACK)
# Steps in succession whose backward was marked from outside, until the hook on the graph goes.
_SURE_AFTER_STEPS = 4


def _graph_node(output: Any) -> Any:
    """The autograd node of the first tensor in a model's output that has one."""
    if isinstance(output, torch.Tensor):
        return output.grad_fn
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        return next((node for part in output if (node := _graph_node(part)) is not None), None)
    return None


def _is_single_process() -> bool:
    return not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


class StepHooks:
    """Hooks on a model, compiled or not, that enter the phases of a monitor.

    Its call is the forward unless a pipeline's schedule runs: ``patches.pipeline`` marks chunks.
    """

    # The hooks of a copied or saved model find these: a copy is not watched.
    _enter_forward: Callable[[], None] = Ignored()
    _on_graph = False
    _steps_outside = _sure_after = 0
    _buckets: BucketWatch | None = None
    _handle: RemovableHandle | None = None
    _pre_hook: RemovableHandle | None = None
    _search: RemovableHandle | None = None
    _wait: Any = None  # in C, once there is nothing left to learn
    _watches_last = False
    parts = Parts()

    def __init__(self, monitor: LiveMonitor, model: torch.nn.Module, *, calls: bool = True) -> None:
        self._recorder, self.parts = monitor.recorder, monitor.parts
        self._forward = new_forward(self._recorder, self._choose)
        self._enter_forward = self._forward
        self._interrupted = NOT_WAITING
        given, model, ddp = model, called_by(model), ddp_in(model)
        if ddp is not None and _queue_callback is not None:
            self._buckets = BucketWatch(ref(ddp), self._new_arrival_hook)
        elif not calls:
            return
        if calls:
            install("backward")
            backward.report_to(self._recorder)
        # The backward of a single process contains no wait to separate.
        self._on_graph = self._buckets is not None or not _is_single_process()
        self._on_graph = self._forward.on_graph = self._on_graph and _queue_callback is not None
        self._sure_after = _SURE_AFTER_STEPS if self._on_graph else 1
        install("evaluations")
        # A part may be evaluated by itself; a single layer, such as a norm, is frozen by eval().
        for module in given.modules():
            if module is given or next(module.children(), None) is not None:
                setattr(module, loop_calls.ATTRIBUTE, self._forward)
        self._model = ref(model)
        self._compiled = getattr(model, COMPILED_CALL.attribute, None) is not None
        if self._compiled:
            install_on(model, COMPILED_CALL.attribute, self._wrap_compiled)
            return
        if not call_before_ddp_forward(model, self._enter_forward):
            self._pre_hook = model.register_forward_pre_hook(self._forward_begins, prepend=True)
        if self._on_graph:
            self._register_graph_hook()
        if self._on_graph and ddp is None and self._pre_hook is not None:
            # The loop may hold what DDP wraps; who calls it tells.
            self._search = model.register_forward_pre_hook(
                functools.partial(self._search_ddp, monitor)
            )

    @part_of("forward")
    def _search_ddp(self, monitor: LiveMonitor, model: torch.nn.Module, *_: Any) -> None:
        """Watches DDP in the model's place, where its forward runs around the model's first one."""
        handles = [self._search]
        if (ddp := ddp_around(model)) is not None:
            handles += [self._pre_hook, self._handle]
            StepHooks(monitor, ddp)
        for handle in filter(None, handles):
            handle.remove()

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (StepHooks,)  # type: ignore[attr-defined]  # typeshed lacks it

    def _wrap_compiled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Marks a call that ``model.compile()`` has compiled: its hooks are inside the graph."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._forward_begins()
            output = original(*args, **kwargs)
            if self._on_graph:
                self._forward_ended(None, None, output)
            return output

        return call

    def _forward_begins(self, *_: Any) -> None:
        if not is_dynamo_compiling():
            self._enter_forward()

    @part_of("backward")
    def _choose(self, outside: bool) -> None:  # C calls it
        """Leaves the graph once backwards are marked from outside; comes back when one was not."""
        self._steps_outside = self._steps_outside + 1 if outside else 0
        needs_graph = self._buckets is not None and (
            not self._buckets.reports_arrival
            or (_backwards.nests and not self._watch_last_gradient(self._buckets))
        )
        if needs_graph or self._steps_outside < self._sure_after:
            self._register_graph_hook()
            return
        self._set_on_graph(enabled=False)
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _watch_last_gradient(self, buckets: BucketWatch) -> bool:
        """Whether the last gradient tells when a nested backward waits."""
        self._watches_last = self._watches_last or buckets.watch_last_gradient(
            self._last_nested_gradient_ready
        )
        return self._watches_last

    def _set_on_graph(self, *, enabled: bool) -> None:
        self._on_graph = self._forward.on_graph = enabled
        if self._wait is not None:
            self._wait.on_graph = enabled

    def _register_graph_hook(self) -> None:
        # The node of the output is new in every forward, and the hook with it: ten times the cost
        # of the listener around torch.autograd.backward.
        if _queue_callback is None:
            return
        self._set_on_graph(enabled=True)
        model = self._model()
        if self._handle is None and model is not None and not self._compiled:
            self._handle = model.register_forward_hook(self._forward_ended)

    @part_of("backward")
    def _forward_ended(self, _module: Any, _inputs: Any, output: Any) -> None:
        if is_dynamo_compiling() or not self._on_graph:
            return
        node = _graph_node(output)
        if node is not None:
            node.register_prehook(self._backward_begins)

    @part_of("backward")
    def _backward_begins(self, *_: Any) -> None:
        # Autograd runs the backward of a GPU in a thread of its own.
        waits.include_this_thread()
        self._recorder.enter_code(BACKWARD)
        _queue_callback(self._last_gradient_ready)

    def _new_arrival_hook(self) -> Callable[[torch.Tensor], None]:
        """Function for the gradient that completes DDP's first bucket to call."""
        if compiled is None or self._buckets is None:
            return self._gradient_ready
        sizes = self._buckets.sizes
        self._wait = compiled.GradientWait(
            recorder=self._recorder,
            backwards=_backwards,
            model=self._buckets.model,
            queue=_queue_callback,
            taps=vars(operations_tap),
            arrived_otherwise=self._first_bucket_ready,
            begins_otherwise=self._ddp_waits,
            kind="all_reduce",
            calls=sizes.count,
            size_bytes=sizes.size_bytes,
            ranks=sizes.ranks,
        )
        self._wait.on_graph = self._on_graph
        arrive: Callable[[torch.Tensor], None] = self._wait.arrive
        return arrive

    @part_of("gradient_buckets")
    def _gradient_ready(self, _parameter: torch.Tensor) -> None:
        if self._buckets is not None and self._buckets.synchronises():
            self._first_bucket_ready()

    @part_of("gradient_buckets")
    def _first_bucket_ready(self) -> None:
        self._recorder.first_arrival()
        if self._on_graph:
            return
        # In nested backwards the callback may run at the end of an inner one, before the other
        # gradients are ready.
        if _backwards.nests:
            if not self._watches_last:
                self._register_graph_hook()
            return
        if not _backwards.inside:
            self._recorder.enter_code(BACKWARD)
        _queue_callback(self._ddp_waits)

    @part_of("backward")
    def _last_nested_gradient_ready(self, _parameter: torch.Tensor) -> None:
        # A reentrant checkpoint runs the backward of its layers within the other one, and the
        # reducer waits at the end of the inner backward in which the last gradient comes.
        if self._on_graph or not _backwards.nests or self._buckets is None:
            return
        if self._buckets.synchronises():
            _queue_callback(self._nested_wait_begins)

    @part_of("backward")
    def _nested_wait_begins(self) -> None:
        self._interrupted = waits.begin()
        # Queued after the callback in which the reducer waits.
        _queue_callback(self._nested_wait_ends)

    @part_of("backward")
    def _nested_wait_ends(self) -> None:
        self._end_wait(self._interrupted)

    @part_of("backward")
    def _last_gradient_ready(self) -> None:
        if self._buckets is not None and self._buckets.synchronises():
            self._ddp_waits()
        else:
            self._queue_at_end(self._backward_ended)

    @part_of("gradient_buckets")
    def _ddp_waits(self) -> None:
        self._interrupted = waits.begin()
        self._queue_at_end(self._gradients_complete)

    @staticmethod
    def _queue_at_end(callback: Callable[[], None]) -> None:
        if _backwards.inside:
            _backwards.ended.append(callback)
        else:
            # Queued last: the engine runs it after the callbacks of DDP and FSDP2, which wait.
            _queue_callback(callback)

    @part_of("gradient_buckets")
    def _learn(self) -> None:
        if self._buckets is not None:
            self._buckets.end_step()

    def _gradients_complete(self) -> None:
        assert self._buckets is not None
        if not self._buckets.settled and self._recorder.on:
            self._learn()
        if self._interrupted == NOT_WAITING:
            self._recorder.enter_code(OTHER)
            return
        self._end_wait(OTHER)

    def _end_wait(self, next_phase: int) -> None:
        assert self._buckets is not None
        sizes = self._buckets.sizes
        waits.end(
            next_phase,
            "all_reduce",
            sizes.size_bytes,
            calls=sizes.count,
            op="grads-sync",
            ranks=sizes.ranks,
        )

    def _backward_ended(self) -> None:
        self._recorder.enter_code(OTHER)


def watch_optimizer(monitor: LiveMonitor, optimizer: Any) -> PhaseHook:
    """Marks the steps of an optimizer, or of what has a step; the hook before each of them."""
    begin, end = (monitor.recorder.phase_hook(code) for code in (OPTIMIZER, OTHER))
    if isinstance(optimizer, torch.optim.Optimizer):
        optimizer.register_step_pre_hook(begin)
        optimizer.register_step_post_hook(end)
        return begin

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            begin()
            try:
                return original(*args, **kwargs)
            finally:
                end()

        return step

    install_on(optimizer, "step", wrap)
    return monitor.recorder.phase_hook(OPTIMIZER)


def watch_all_optimizers(monitor: LiveMonitor) -> None:
    """Marks the steps that any optimizer makes in this thread, for a loop that gave none."""
    thread = threading.get_ident()

    def call_in_this_thread(hook: PhaseHook) -> Callable[..., None]:
        def call(*_: Any) -> None:
            if threading.get_ident() == thread:
                hook()

        return call

    while _for_all:
        _for_all.pop().remove()  # of the monitor before
    begin, end = (monitor.recorder.phase_hook(code) for code in (OPTIMIZER, OTHER))
    _for_all.append(register_optimizer_step_pre_hook(call_in_this_thread(begin)))
    _for_all.append(register_optimizer_step_post_hook(call_in_this_thread(end)))


_for_all: list[RemovableHandle] = []
