"""Keeps errors of ours out of the training loop."""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")


class Fallible(Protocol):
    """Knows what to do with an error of its own."""

    def fail(self, error: Exception) -> None:
        """Counts it and turns off."""


F = TypeVar("F", bound=Fallible)


def guarded(method: Callable[Concatenate[F, P], None]) -> Callable[Concatenate[F, P], None]:
    """Lets no error of ours into the training loop: it is counted, said once, and we turn off."""

    def safely(self: F, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  # one of the two places that may: the step
            self.fail(error)

    functools.update_wrapper(safely, method)
    return safely
