"""Tells when a process group is initialised."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from lockstep.guard import outcome_of

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
