"""Losses, norms and rates that lie on a GPU: copied beside the stream, read some steps later.

The copy goes into pinned memory behind the step's work, with an event behind it; nothing waits for
either. What comes too late is dropped and counted.
"""

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from lockstep.recorder.device_events import Event

PLACES = 16


class LateNumbers(NamedTuple):
    """What a step told, read after it; None for what was no number on the device."""

    step: int
    loss: float | None
    gradient_norm: float | None
    learning_rate: float | None


class DeviceNumbers:
    """Numbers on their way from a device.

    Args:
        make: a new event.
        memory: pinned memory to copy into [places, 3].
        is_there: whether a value is a number on the device.

    Attributes:
        dropped: steps whose numbers were given up, for all places were under way.
    """

    def __init__(
        self, make: Callable[[], Event], memory: Any, is_there: Callable[[Any], bool]
    ) -> None:
        self._memory, self._is_there = memory, is_there
        self._events = [make() for _ in range(len(memory))]
        self._free = deque(range(len(memory)))
        self._under_way: deque[tuple[int, int, tuple[bool, ...]]] = deque()
        self.dropped = 0

    @property
    def waits(self) -> bool:
        """Whether numbers are under way, so that ``come`` should be asked."""
        return bool(self._under_way)

    def take(self, step: int, *values: Any) -> None:
        """Starts the copies of what a step tells: loss, gradient norm, learning rate."""
        there = tuple(self._is_there(value) for value in values)
        if not any(there):
            return
        if not self._free:
            self.dropped += 1
            return
        place = self._free.popleft()
        for column, (value, is_there) in enumerate(zip(values, there, strict=True)):
            if is_there:
                number = value.detach().reshape(()).float()  # converted there, or the copy waits
                self._memory[place, column].copy_(number, non_blocking=True)
        self._events[place].record()
        self._under_way.append((step, place, there))

    def come(self) -> LateNumbers | None:
        """The oldest numbers under way, once they are there."""
        if not self._under_way or not self._events[self._under_way[0][1]].query():
            return None
        step, place, there = self._under_way.popleft()
        self._free.append(place)
        row = self._memory[place].tolist()
        loss, norm, rate = (number if was else None for number, was in zip(row, there, strict=True))
        return LateNumbers(step, loss, norm, rate)


def device_numbers() -> DeviceNumbers | None:
    """Numbers of this process's GPU; None while it uses none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None

    def is_there(value: Any) -> bool:  # a distributed tensor would need a collective to be read
        kind = type(value) in {torch.Tensor, torch.nn.Parameter}
        return kind and bool(value.is_cuda) and value.numel() == 1

    memory = torch.zeros((PLACES, 3), dtype=torch.float32, pin_memory=True)
    return DeviceNumbers(torch.cuda.Event, memory, is_there)
