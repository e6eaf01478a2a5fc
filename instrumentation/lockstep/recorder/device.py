"""The device of a process through one small interface, so that a stand-in is enough to drive it.

Whatever has the names of ``torch.cuda`` that are used here is a device: ``is_initialized``,
``Event``, ``current_stream`` and ``is_current_stream_capturing``.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self


class Stream(Protocol):
    """The part of ``torch.cuda.Stream`` that is used."""

    def query(self) -> bool:
        """Whether all work of the stream is done; waits for none."""


class Event(Protocol):
    """The part of ``torch.cuda.Event`` that is used."""

    def record(self, stream: Any = None) -> Any:
        """Puts it at the end of a stream, of the current one by default."""

    def query(self) -> bool:
        """Whether the stream has passed it; waits for nothing."""

    def elapsed_time(self, end_event: Self) -> float:
        """Milliseconds from this event to another; both have passed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What the recorder calls of a device; none of it waits.

    Attributes:
        current_stream: the stream that takes the work of the calling thread.
        is_capturing: whether that stream takes no events now, because a graph is captured.
    """

    create_event: Callable[[], Event]
    current_stream: Callable[[], Stream]
    is_capturing: Callable[[], bool]


stand_in: Any = None
"""Takes the place of ``torch.cuda`` in tests and benches."""


def device_module() -> Any:
    """``torch.cuda`` or what this build of torch has in its place; None while nothing uses it."""
    if stand_in is not None:
        return stand_in if stand_in.is_initialized() else None
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if torch.cuda.is_initialized():
        return torch.cuda
    accelerator = getattr(torch, "accelerator", None)  # torch 2.6 and later
    # Of how torch was built; asking whether one is available could start its driver.
    kind = accelerator.current_accelerator(check_available=False) if accelerator else None
    module = getattr(torch, kind.type, None) if kind is not None else None
    is_initialized = getattr(module, "is_initialized", None)
    return module if is_initialized is not None and is_initialized() else None


def find_device() -> Device | None:
    """The device of this process; None while the process uses none, or one without streams."""
    module = device_module()
    if module is None or not hasattr(module, "Event") or not hasattr(module, "current_stream"):
        return None
    event = module.Event
    return Device(
        create_event=lambda: event(enable_timing=True),
        current_stream=module.current_stream,
        is_capturing=getattr(module, "is_current_stream_capturing", lambda: False),
    )
