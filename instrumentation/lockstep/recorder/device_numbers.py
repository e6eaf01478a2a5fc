"""Losses, norms and rates that are on a GPU: copied within the stream, read some steps later.

The copy goes into pinned memory behind the step's work, with an event behind it; nothing waits for
either. A number that finds no free row is dropped and counted.
"""

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from lockstep.guard import Parts, part_of
from lockstep.recorder.device import Event

ROWS = 16  # steps whose numbers may be under way


class LateNumbers(NamedTuple):
    """Numbers of a step, read after it; None for what was not a number on the device."""

    step: int
    loss: float | None
    gradient_norm: float | None
    learning_rate: float | None


class DeviceNumbers:
    """Numbers on their way from a device.

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
