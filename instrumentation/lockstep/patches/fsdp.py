"""Times where FSDP2 has the stream of a device wait: for gathered parameters, reduced gradients.

On a device FSDP2 starts its collectives in its own streams, which takes no time. The loop's stream
waits for their events; only there the rank waits for the others.
"""

import functools
from collections.abc import Callable
from typing import Any

from lockstep.patches import waits
from lockstep.patches.collectives import size_bytes_of


class TimedEvent:
    """An event of a reduce-scatter; its wait is reported."""

    def __init__(self, event: Any, size_bytes: int, ranks: int) -> None:
        self._event, self._size_bytes, self._ranks = event, size_bytes, ranks

    def wait(self, stream: Any = None) -> None:
        """Has a stream wait, and reports it."""
        interrupted = waits.begin()
        try:
            self._event.wait(stream)
        finally:
            waits.end(interrupted, "reduce_scatter", self._size_bytes, ranks=self._ranks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._event, name)


def wrap_copy_out(original: Callable[..., Any]) -> Callable[..., Any]:
    """Waits for an all-gather, and reports that, before torch waits and copies.

    Torch's own wait for the same event in the same stream costs nothing then.
    """

    @functools.wraps(original)
    def copy_out(all_gather_result: Any, fsdp_params: Any, group: Any) -> Any:
        event = getattr(all_gather_result, "all_gather_event", None)
        if event is not None and waits.uses_device():
            size_bytes = size_bytes_of(all_gather_result.all_gather_output)
            interrupted = waits.begin()
            try:
                event.wait()
            finally:
                waits.end(
                    interrupted, "all_gather", size_bytes, op="params-sync", ranks=group.size()
                )
        return original(all_gather_result, fsdp_params, group)

    return copy_out


def wrap_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has the wait for a reduce-scatter reported, whoever waits for its event."""

    @functools.wraps(original)
    def reduce(fsdp_params: Any, gradients: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        size_bytes = size_bytes_of(gradients)  # before torch drops them
        result = original(fsdp_params, gradients, group, *args, **kwargs)
        is_known = isinstance(result, tuple) and len(result) > 1 and hasattr(result[1], "wait")
        if not is_known or group is None or not waits.uses_device():
            return result
        return (result[0], TimedEvent(result[1], size_bytes, group.size()), *result[2:])

    return reduce


def wrap_group_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    """Times a method of a group of parameters that does little but wait for reduced gradients."""

    @functools.wraps(original)
    def wait(self: Any) -> Any:
        if not waits.uses_device() or not _has_reduced(self):
            return original(self)
        interrupted = waits.begin()
        try:
            return original(self)
        finally:
            # Counted by the event of the reduce-scatter itself.
            waits.end(interrupted, "reduce_scatter", 0, calls=0, op="grads-sync")

    return wait


def _has_reduced(group: Any) -> bool:
    """Whether there is an event to wait for; by the names of several versions of torch."""
    context = getattr(group, "comm_ctx", None)
    return bool(
        getattr(group, "_post_reduce_event", None)
        or getattr(group, "_all_reduce_state", None)
        or getattr(context, "_last_post_reduce_events", None)
    )
