"""Calls of torch that a loop makes beside its model's: loaders, ``eval()``, graphs, groups.

What runs without gradients after ``eval()`` of a watched model, or of a part of it, is evaluation,
until a forward has gradients again. Frameworks iterate torch's DataLoader inside one of their own,
out of reach of ``monitor.prepare``.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar
from weakref import ref

import torch

from lockstep.guard import outcome_of
from lockstep.patches import waits
from lockstep.recorder.batches import count_batch, fetched_ahead
from lockstep.recorder.phases import DATA, EVAL, FORWARD, INIT, OTHER

P = ParamSpec("P")
R = TypeVar("R")
_waiting: list[Callable[[], object]] = []


def call_when_initialised(callback: Callable[[], object]) -> None:
    """Calls it once, after the next initialisation of the default group."""
    _waiting.append(callback)


def wrap_initialisation(original: Callable[P, R]) -> Callable[P, R]:
    """Calls those who wait after the group is there."""

    @functools.wraps(original)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        result = original(*args, **kwargs)
        while _waiting:
            outcome_of(_waiting.pop(0))  # what fails there concerns no process group
        return result

    return call


# Inside any other phase it is a part of that, as in a compiled forward.
_OUTSIDE = frozenset({INIT, DATA, OTHER})


def wrap_replay(original: Callable[..., Any]) -> Callable[..., Any]:
    """Counts a graph that is replayed between phases as forward, whatever it holds."""

    @functools.wraps(original)
    def replay(self: Any) -> Any:
        recorder = waits.recorder_of_this_thread()
        if recorder is None or recorder.phase not in _OUTSIDE:
            return original(self)
        recorder.enter_code(FORWARD)
        try:
            return original(self)
        finally:
            recorder.enter_code(OTHER)

    return replay


def wrap_next(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Counts the wait as data, but where the loop already does and in threads of others."""

    @functools.wraps(original)
    def call(self: Any) -> Any:
        recorder = waits.recorder_of_this_thread()
        if recorder is None or recorder.phase == DATA:
            return original(self)
        # An evaluation fetches its own batches.
        if recorder.phase == EVAL and not is_over():
            return original(self)
        recorder.enter_code(DATA)
        try:
            batch = original(self)
            if recorder.counts_batches and recorder.phase == DATA:  # no block holds another one
                waits.run("loop_numbers", count_batch, recorder, batch)
            return batch
        finally:
            recorder.enter_code(OTHER)

    return call


def wrap_workers(original: Callable[..., None]) -> Callable[..., None]:
    """Notes how far ahead of the loop a loader's workers are at most."""

    @functools.wraps(original)
    def call(self: Any, loader: Any) -> None:
        original(self, loader)
        # An evaluation has a loader of its own.
        if torch.is_grad_enabled() and waits.recorder_of_this_thread() is not None:
            fetched_ahead.workers = loader.num_workers
            fetched_ahead.batches = loader.num_workers * loader.prefetch_factor

    return call


ATTRIBUTE = "_lockstep_forward"
"""Attribute of a watched module: marks its forwards."""


_newest: list["ref[torch.nn.Module]"] = []  # what is evaluated, or was


def is_over() -> bool:
    """Whether what was evaluated last trains again; what a loop fetches is for training then."""
    module = _newest[0]() if _newest else None
    return torch.is_grad_enabled() and (module is None or module.training)


def wrap_eval(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Tells the watch of the module."""

    @functools.wraps(original)
    def call(self: Any) -> Any:
        forward, recorder = vars(self).get(ATTRIBUTE), waits.recorder_of_this_thread()
        # A copy of a watched module, such as a moving average, has a mark that does nothing.
        if recorder is not None and hasattr(forward, "evaluates"):
            forward.evaluates, _newest[:] = True, [ref(self)]
            if recorder.phase != INIT:
                recorder.enter_code(EVAL)
        return original(self)

    return call
