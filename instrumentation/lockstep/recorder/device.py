"""The device of a process through one small interface, and the loop's numbers that are on it.

Whatever has the names of ``torch.cuda`` that are used here is a device: ``is_initialized``,
``Event``, ``current_stream`` and ``is_current_stream_capturing``.
"""

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from lockstep.guard import Parts, part_of


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


ROWS = 16  # steps whose numbers may be under way


class LateNumbers(NamedTuple):
    """Numbers of a step, read after it; None for what was not a number on the device."""

    step: int
    loss: float | None
    gradient_norm: float | None
    learning_rate: float | None


class DeviceNumbers:
    """Numbers on their way from a device: copied within the stream, read some steps later.

    The copy goes into pinned memory behind the step's work, with an event behind it; nothing waits
    for either. A number that finds no free row is dropped and counted.

    Args:
        memory: pinned memory to copy into, float32 [rows, 3]: loss, gradient norm, learning rate.
        is_on_device: whether a value is a number on the device.
        parts: of the monitor; ``take`` runs inside the loop's call.

    Attributes:
        dropped: number of steps whose numbers were given up, as all rows were under way.
    """

    def __init__(
        self,
        create_event: Callable[[], Event],
        memory: Any,
        is_on_device: Callable[[Any], bool],
        parts: Parts | None = None,
    ) -> None:
        self.parts = parts or Parts()
        self._memory, self._is_on_device = memory, is_on_device
        self._events = [create_event() for _ in range(len(memory))]
        self._free = deque(range(len(memory)))
        self._under_way: deque[tuple[int, int, tuple[bool, ...]]] = deque()
        self.dropped = 0

    @part_of("device_numbers")
    def take(self, step: int, *values: Any) -> None:
        """Starts the copies of a step's loss, gradient norm and learning rate."""
        present = tuple(self._is_on_device(value) for value in values)
        if not any(present):
            return
        if not self._free:
            self.dropped += 1
            return
        row = self._free.popleft()
        for column, (value, is_present) in enumerate(zip(values, present, strict=True)):
            if is_present:
                # Converted on the device: a copy that also converts the type would wait.
                number = value.detach().reshape(()).float()
                self._memory[row, column].copy_(number, non_blocking=True)
        self._events[row].record()
        self._under_way.append((step, row, present))

    def poll(self) -> LateNumbers | None:
        """The oldest numbers under way, once they are copied; None until then."""
        if not self._under_way or not self._events[self._under_way[0][1]].query():
            return None
        step, row, present = self._under_way.popleft()
        self._free.append(row)
        loss, norm, rate = (
            number if is_present else None
            for number, is_present in zip(self._memory[row].tolist(), present, strict=True)
        )
        return LateNumbers(step, loss, norm, rate)


def device_numbers(parts: Parts | None = None) -> DeviceNumbers | None:
    """Numbers of this process's GPU; None while the process uses none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None

    def is_on_device(value: Any) -> bool:
        # Exact types: to read a distributed tensor takes a collective, which would block the step.
        is_plain = type(value) in {torch.Tensor, torch.nn.Parameter}
        return is_plain and bool(value.is_cuda) and value.numel() == 1

    memory = torch.zeros((ROWS, 3), dtype=torch.float32, pin_memory=True)
    return DeviceNumbers(torch.cuda.Event, memory, is_on_device, parts)
