"""Tells when a process group is initialised, and which DDP model wraps which module."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, ref

from lockstep.guard import outcome_of

P = ParamSpec("P")
R = TypeVar("R")
_waiting: list[Callable[[], object]] = []
_wrapper_by_module: "WeakKeyDictionary[Any, ref[Any]]" = WeakKeyDictionary()


def call_when_initialised(callback: Callable[[], object]) -> None:
    """Calls it once, after the next initialisation of the default group."""
    _waiting.append(callback)


def wrapper_of(module: Any) -> Any:
    """The DDP model that was built around a module; the module itself where there is none."""
    wrapper = _wrapper_by_module.get(module)
    return module if wrapper is None else wrapper() or module


def wrap_initialisation(original: Callable[P, R]) -> Callable[P, R]:
    """Calls those who wait after the group is there."""

    @functools.wraps(original)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        result = original(*args, **kwargs)
        while _waiting:
            outcome_of(_waiting.pop(0))  # what fails there concerns no process group
        return result

    return call


def wrap_construction(original: Callable[..., None]) -> Callable[..., None]:
    """Notes the module inside."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        outcome_of(_note_wrapper, self)

    return call


def _note_wrapper(model: Any) -> None:
    _wrapper_by_module[model.module] = ref(model)
