"""Device time of sampled steps: an event into the GPU's stream at each boundary between phases.

Nothing here waits. Events come from a bounded pool, are recorded on the current stream, and are
asked in later steps whether they have passed; a step that takes too long to pass is dropped and
counted. Time in which the stream had nothing to do counts for the phase in which it stood idle.
"""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

MOST_EVENTS = 1024
MOST_STEPS = 4
E = TypeVar("E", bound="Event")


class Event(Protocol):
    """What is asked of ``torch.cuda.Event``."""

    def record(self) -> None:
        """Puts it at the end of the current stream."""

    def query(self) -> bool:
        """Whether the stream has passed it."""

    def elapsed_time(self, end_event: Self) -> float:
        """Milliseconds from this event to another; both have passed."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A row of an operation that was cut from phases, and the boundary with which it begins."""

    boundary: int
    operation: int
    sequence: int
    chunk: int
    kind: int


@dataclass(slots=True)
class _Sample:
    step: int
    events: list[Event] = field(default_factory=list)
    host_ns: list[int] = field(default_factory=list)
    phases: Sequence[int] = ()
    cuts: Sequence[Cut] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceStep:
    """A sampled step as the device went through it.

    Attributes:
        boundaries_ns: monotonic times of the boundaries, the step's end last, as early as they can
            have been: no event passes before the host has recorded it.
        phases: code of the phase between each boundary and the next.
        cuts: rows of operations that were cut from these phases.
    """

    step: int
    boundaries_ns: Sequence[int]
    phases: Sequence[int]
    cuts: Sequence[Cut]


class DeviceEvents:
    """Records events in sampled steps and gives those steps back once they have passed.

    Args:
        make: a new event with timing.
        is_closed: whether the stream takes no events now, such as while a graph is captured.
        most_events: events in the pool.
        most_steps: sampled steps that may be under way; the oldest goes when one more comes.

    Attributes:
        dropped: sampled steps that were given up.
    """

    def __init__(
        self,
        make: Callable[[], Event],
        is_closed: Callable[[], bool] = lambda: False,
        *,
        most_events: int = MOST_EVENTS,
        most_steps: int = MOST_STEPS,
    ) -> None:
        self._make, self._is_closed = make, is_closed
        self._left, self._most_steps = most_events, most_steps
        self._free: list[Event] = []
        self._now: _Sample | None = None
        self._under_way: deque[_Sample] = deque()
        self.dropped = 0

    @property
    def waits(self) -> bool:
        """Whether a step is under way, so that ``passed`` should be asked."""
        return bool(self._under_way)

    def begin(self, step: int, now_ns: int) -> None:
        """A sampled step begins."""
        self._drop(self._now)
        self._now = _Sample(step)
        self.enter_phase(now_ns)

    def enter_phase(self, now_ns: int) -> None:
        """A boundary between phases; without a place for it the whole step is dropped."""
        sample = self._now
        if sample is None:
            return
        try:
            event = None if self._is_closed() else self._take()
            if event is not None:
                sample.events.append(event)
                sample.host_ns.append(now_ns)
                event.record()
                return
        except RuntimeError:  # the device has failed: the loop will hear of it without us
            pass
        self._now = None
        self._drop(sample)

    def end(self, now_ns: int, phases: Sequence[int], cuts: Sequence[Cut]) -> None:
        """The sampled step is over on the host."""
        self.enter_phase(now_ns)
        sample, self._now = self._now, None
        if sample is None:
            return
        sample.phases, sample.cuts = phases, cuts
        self._under_way.append(sample)
        if len(self._under_way) > self._most_steps:
            self._drop(self._under_way.popleft())

    def passed(self) -> DeviceStep | None:
        """The oldest step under way, once the device is through with it."""
        if not self._under_way:
            return None
        sample = self._under_way[0]
        try:
            if not all(event.query() for event in reversed(sample.events)):
                return None
            first = sample.events[0]
            offsets = [0, *(int(first.elapsed_time(e) * 1e6) for e in sample.events[1:])]
        except RuntimeError:  # the same
            self._drop(self._under_way.popleft())
            return None
        self._under_way.popleft()
        self._free += sample.events
        earliest = max(host - off for host, off in zip(sample.host_ns, offsets, strict=True))
        return DeviceStep(
            step=sample.step,
            boundaries_ns=[earliest + offset for offset in offsets],
            phases=sample.phases,
            cuts=sample.cuts,
        )

    def _take(self) -> Event | None:
        if self._free:
            return self._free.pop()
        if not self._left:
            return None
        self._left -= 1
        return self._make()

    def _drop(self, sample: _Sample | None) -> None:
        if sample is not None:
            self._free += sample.events
            self.dropped += 1


def device_events() -> DeviceEvents | None:
    """Events of this process's GPU; None while it uses none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    event, capturing = torch.cuda.Event, torch.cuda.is_current_stream_capturing
    return DeviceEvents(lambda: event(enable_timing=True), capturing)
