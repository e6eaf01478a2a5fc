"""JAX: one line wraps the step function, and each process is a rank.

    import lockstep.jax

    train_step = lockstep.jax.watch(train_step)  # jitted or not
    for batch in loader:
        state, metrics = train_step(state, batch)

A step lasts from one call to the next: JAX hands work to the device and returns, so the end of a
call says nothing. What the call takes is the device's time, own work and waits for other ranks in
one, and counts as `sync`; compilation in it counts as `other`, and what the loop does between two
calls as `data`. So a rank that is late by its host is named. One that is late by its device is not:
NCCL's plugin and the Inspector tell these.
"""

import functools
import os
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import lockstep
from lockstep.guard import outcome_of
from lockstep.identity.ranks import RankPosition, find_position
from lockstep.monitor.live import LiveMonitor
from lockstep_records.distribution import install_hint

try:
    import jax
    from jax import monitoring
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"lockstep.jax needs jax; {install_hint('jax')}", name=error.name
    ) from error

P = ParamSpec("P")
R = TypeVar("R")
# Waiting for the step before the last one leaves two to the device, which is never idle for it.
_STEPS_IN_FLIGHT = 2
_MAX_BYTES, _MAX_LEAVES = 1 << 20, 4
_TRACED = "/jax/core/compile/jaxpr_trace_duration"
_COMPILED = "/jax/core/compile/backend_compile_duration"


class WatchedStep(Generic[P, R]):
    """A step function, its attributes included, whose calls are the steps of this rank.

    The monitor, for blocks such as ``with train_step.monitor.checkpoint():``, is made by the
    options for ``attach`` at the first call, when JAX knows the processes.
    """

    def __init__(self, step: Callable[P, R], **options: Any) -> None:
        functools.update_wrapper(self, step)
        self._step, self._options = step, options
        self.monitor = lockstep.disabled()
        self._has_begun = self._is_inside = False
        self._in_flight = deque[list[Any]]()
        monitoring.register_event_duration_secs_listener(self._compiled)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function; ends the step that began with the last call."""
        if self._has_begun:
            self.monitor.step()
        else:
            self._has_begun = True
            self.monitor = lockstep.attach(**{"environment": _environment(), **self._options})
            if isinstance(self.monitor, LiveMonitor):
                self.monitor.first_steps.unseen.add("device")
        self.monitor.enter_phase("sync")
        self._is_inside = True
        try:
            result = self._step(*args, **kwargs)
            # An error of the device is the loop's, where it uses the result.
            outcome_of(self._wait_for_earlier, result)
        finally:
            self._is_inside = False
            self.monitor.enter_phase("data")
        return result

    def __getattr__(self, name: str) -> Any:
        if name == "_step":  # of a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self._step, name)

    def _wait_for_earlier(self, result: R) -> None:
        """Returns once the device is through with the step before the last one."""
        leaves = [each for each in jax.tree.leaves(result) if isinstance(each, jax.Array)]
        # A reference must not hold the memory of a model.
        small = sorted((each for each in leaves if each.nbytes <= _MAX_BYTES), key=_size)
        self._in_flight.append(small[:_MAX_LEAVES])
        if len(self._in_flight) > _STEPS_IN_FLIGHT:
            for leaf in self._in_flight.popleft():
                # One that was donated to the next step has no buffer any more.
                if not leaf.is_deleted():
                    leaf.block_until_ready()
                    return

    def _compiled(self, event: str, duration_secs: float, **_: Any) -> None:
        """A part of a compilation has ended, in whatever thread and function."""
        del duration_secs
        if self._is_inside and event in {_TRACED, _COMPILED}:
            self.monitor.enter_phase("other" if event == _TRACED else "sync")


def watch(step: Callable[P, R], **options: Any) -> WatchedStep[P, R]:
    """The step function, whose calls are the steps of this rank; options are ``attach``'s."""
    return WatchedStep(step, **options)


def _size(array: jax.Array) -> int:
    return int(array.nbytes)


def _environment() -> dict[str, str]:
    """The variables of this process, with its place among JAX's where no launcher states one."""
    position, num_ranks = outcome_of(find_position, os.environ), jax.process_count()
    if isinstance(position, RankPosition) and position.world_size == num_ranks:
        return dict(os.environ)
    rank = str(jax.process_index())
    return {"LOCAL_RANK": rank, **os.environ, "RANK": rank, "WORLD_SIZE": str(num_ranks)}
