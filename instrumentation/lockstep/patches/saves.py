"""Counts files that the loop saves outside a block of its own as checkpoints.

A rank 0 that saves every so many steps makes the others wait: without the phase its lateness would
have no cause.
"""

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from io import BytesIO
from typing import ParamSpec, Protocol, TypeVar, cast

from lockstep.patches import waits

P = ParamSpec("P")
R = TypeVar("R")


class CheckpointBlocks(Protocol):
    """What is asked of a monitor here."""

    @property
    def next_step(self) -> int:
        """Number that the step which runs now will have."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Counts the block as one phase."""

    def checkpoint(self, step: int | None = None) -> AbstractContextManager[object]:
        """Counts the block as writing a checkpoint."""


_counted_steps: dict[int, int] = {}  # by monitor: the step before which it saved last


def wrap_save(original: Callable[P, R]) -> Callable[P, R]:
    """Holds the phase while something is saved.

    To memory only a mapping counts, a checkpoint's parts, which somebody writes from there.
    """

    @functools.wraps(original)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        monitor = waits.monitor_outside_blocks()
        given = (*args, *kwargs.values())
        is_in_memory = any(isinstance(value, BytesIO) for value in given)
        if monitor is None or (is_in_memory and not any(isinstance(v, Mapping) for v in given)):
            return original(*args, **kwargs)
        with _block(cast("CheckpointBlocks", monitor)):
            return original(*args, **kwargs)

    return call


def _block(monitor: CheckpointBlocks) -> AbstractContextManager[object]:
    """A checkpoint; for the second file and those after it in one step only its time."""
    step = monitor.next_step
    if _counted_steps.get(id(monitor)) == step:
        return monitor.phase("checkpoint")
    _counted_steps.clear()  # one monitor takes reports at a time
    _counted_steps[id(monitor)] = step
    return monitor.checkpoint()
