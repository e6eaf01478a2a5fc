"""Keeps the monitor's own errors out of the training loop."""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")


class Fallible(Protocol):
    """Handles errors of its own."""

    def fail(self, error: Exception) -> None:
        """Counts the error and turns the monitor off."""


F = TypeVar("F", bound=Fallible)


def guarded(method: Callable[Concatenate[F, P], None]) -> Callable[Concatenate[F, P], None]:
    """Hands every exception of a method to ``fail``; an interrupt or exit of the user's passes."""

    def safely(self: F, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        # Not BaseException: KeyboardInterrupt and SystemExit are the user's.
        except Exception as error:  # noqa: BLE001  # one of the two places that may: the step
            self.fail(error)

    functools.update_wrapper(safely, method)
    return safely
