"""Device time of sampled steps: an event into the GPU's stream at each boundary between phases.

Nothing here waits: a synchronisation is what a monitor must never add. Events come from a bounded
pool, are recorded on the current stream, and are queried in later steps; a step that takes too long
is dropped and counted. Time in which the stream is idle counts for the phase in which it is idle.
"""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

MAX_EVENTS = 1024
MAX_STEPS = 4
E = TypeVar("E", bound="Event")


class Event(Protocol):
    """The part of ``torch.cuda.Event`` that is used."""

    def record(self) -> None:
        """Puts it at the end of the current stream."""

    def query(self) -> bool:
        """Whether the stream has passed it."""

    def elapsed_time(self, end_event: Self) -> float:
        """Milliseconds from this event to another; both have passed."""


@dataclass(frozen=True, slots=True)
class PhaseOperation:
    """An operation derived from a phase of the host, and the boundary with which it begins."""

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
    operations: Sequence[PhaseOperation] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceStep:
    """A sampled step as the device went through it.

    Attributes:
        boundaries_ns: monotonic times of the boundaries, the step's end last, as early as they can
            have been: no event passes before the host has recorded it.
        phases: code of the phase between each boundary and the next.
        operations: derived from these phases.
    """

    step: int
    boundaries_ns: Sequence[int]
    phases: Sequence[int]
    operations: Sequence[PhaseOperation]


class DeviceEvents:
    """Records events in sampled steps and gives those steps back once they have passed.

    Args:
        create_event: creates an event with timing.
        is_capturing: whether the stream takes no events now, because a graph is captured.
        max_events: events in the pool.
        max_steps: sampled steps that may be under way; the oldest is dropped for one more.

    Attributes:
        dropped: number of sampled steps that were given up.
    """

    def __init__(
        self,
        create_event: Callable[[], Event],
        is_capturing: Callable[[], bool] = lambda: False,
        *,
        max_events: int = MAX_EVENTS,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self._create_event, self._is_capturing = create_event, is_capturing
        self._events_left, self._max_steps = max_events, max_steps
        self._free: list[Event] = []
        self._now: _Sample | None = None
        self._under_way: deque[_Sample] = deque()
        self.dropped = 0

    @property
    def is_pending(self) -> bool:
        """Whether a step is under way, so that ``poll`` may return one."""
        return bool(self._under_way)

    def begin(self, step: int, now_ns: int) -> None:
        """Begins a sampled step."""
        self._drop(self._now)
        self._now = _Sample(step)
        self.enter_phase(now_ns)

    def enter_phase(self, now_ns: int) -> None:
        """Records a boundary between phases; without an event for it the whole step is dropped."""
        sample = self._now
        if sample is None:
            return
        try:
            event = None if self._is_capturing() else self._take()
            if event is not None:
                sample.events.append(event)
                sample.host_ns.append(now_ns)
                event.record()
                return
        except RuntimeError:  # the device has failed; the loop's next call of it raises too
            pass
        self._now = None
        self._drop(sample)

    def end(self, now_ns: int, phases: Sequence[int], operations: Sequence[PhaseOperation]) -> None:
        """Ends the sampled step on the host."""
        self.enter_phase(now_ns)
        sample, self._now = self._now, None
        if sample is None:
            return
        sample.phases, sample.operations = phases, operations
        self._under_way.append(sample)
        if len(self._under_way) > self._max_steps:
            self._drop(self._under_way.popleft())

    def poll(self) -> DeviceStep | None:
        """The oldest step under way, once the device has finished it; None until then."""
        if not self._under_way:
            return None
        sample = self._under_way[0]
        try:
            # The last one first: while the device is behind, one query is enough.
            if not all(event.query() for event in reversed(sample.events)):
                return None
            first = sample.events[0]
            offsets = [0, *(int(first.elapsed_time(e) * 1e6) for e in sample.events[1:])]
        except RuntimeError:  # the device has failed, as above
            self._drop(self._under_way.popleft())
            return None
        self._under_way.popleft()
        self._free += sample.events
        # Events give distances only, and none passes before the host has recorded it: the latest
        # bound is exact where the device once waited for the host (docs/decisions/0008).
        earliest = max(host - off for host, off in zip(sample.host_ns, offsets, strict=True))
        return DeviceStep(
            step=sample.step,
            boundaries_ns=[earliest + offset for offset in offsets],
            phases=sample.phases,
            operations=sample.operations,
        )

    def _take(self) -> Event | None:
        if self._free:
            return self._free.pop()
        if not self._events_left:
            return None
        self._events_left -= 1
        return self._create_event()

    def _drop(self, sample: _Sample | None) -> None:
        if sample is not None:
            self._free += sample.events
            self.dropped += 1


def device_events() -> DeviceEvents | None:
    """Events of this process's GPU; None while the process uses none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    event, capturing = torch.cuda.Event, torch.cuda.is_current_stream_capturing
    return DeviceEvents(lambda: event(enable_timing=True), capturing)
