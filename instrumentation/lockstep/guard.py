"""Keeps errors of ours out of the training loop."""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from lockstep.disabled import Disabled

P = ParamSpec("P")
M = TypeVar("M", bound=Disabled)


def guarded(method: Callable[Concatenate[M, P], None]) -> Callable[Concatenate[M, P], None]:
    """Lets no error of ours into the training loop: it is counted, said once, and we turn off."""

    def safely(self: M, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  # one of the two places that may: the step
            self.fail(error)

    functools.update_wrapper(safely, method)
    return safely
