"""The device's course through a step: an event into its stream wherever the rank's phase changes.

Nothing here waits. Events come from a pool that is made once, are recorded on the loop's stream and
are queried at the ends of later steps. ``device.c`` holds the same in C.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from operator import or_, sub
from typing import TypeVar

from lockstep.guard import outcome_of
from lockstep.recorder.device import Device, Event
from lockstep.recorder.device_times import (
    ARRIVAL,
    CAUGHT_UP,
    GROUP_END,
    KIND_SHIFT,
    MAX_EVENTS,
    DeviceTimes,
    StepDivider,
    StepEvents,
)
from lockstep.recorder.phases import OTHER, SYNC

POOL_EVENTS = 4 * MAX_EVENTS  # of all steps that the device has not passed yet
_MS = 1e6  # nanoseconds
_NOT_TIMED = -1
R = TypeVar("R")
T = TypeVar("T")


class DeviceTimeline:
    """Records the events of steps and measures steps that the device has passed.

    Attributes:
        stride: each n-th wait of a step has events; more than one where a step has too many.
        failed: whether there was an error; then no more events are recorded.
        overflowed: whether the running step had more than ``MAX_EVENTS``.
    """

    def __init__(self, device: Device, fail: Callable[[Exception], None]) -> None:
        self._fail = fail
        self._events: list[Event] = [device.create_event() for _ in range(POOL_EVENTS)]
        self._records: list[Callable[..., object]] = [event.record for event in self._events]
        self._elapsed = [event.elapsed_time for event in self._events]
        self._current_stream, self._is_capturing = device.current_stream, device.is_capturing
        self._stream = device.current_stream()
        self._query = self._stream.query
        self._host_ns = [0] * POOL_EVENTS
        self._phases = [OTHER] * POOL_EVENTS
        self._marks = [0] * POOL_EVENTS
        self._divider = StepDivider()
        self._count = 0  # events recorded so far; event n is at index n mod POOL_EVENTS
        self._first = _NOT_TIMED  # of the running step
        self._oldest = 0  # event that is still needed
        self._waits, self._is_skipping = 0, False
        self._passed_ns = 0.0  # moment at which the device passed event ``_passed``
        self._passed = _NOT_TIMED
        self.stride, self.failed, self.overflowed = 1, False, False

    def begin(self, now_ns: int, phase: int) -> None:
        """Begins a step here, in the middle of what the loop does."""
        self._first = _NOT_TIMED
        self._take_stream()
        if self._record(now_ns, phase):
            self._first = self._count - 1
        self._waits, self._is_skipping = 0, False

    def boundary(self, now_ns: int, phase: int) -> None:
        """A phase begins on the host."""
        if self._first < 0 or (self.stride > 1 and self._skips(phase)):
            return
        if not self._record(now_ns, phase):
            self._give_up()

    def _skips(self, phase: int) -> bool:
        """Whether a boundary belongs to a wait that has no events."""
        if phase == SYNC:
            self._waits += 1
            self._is_skipping = self._waits % self.stride != 0
            return self._is_skipping
        was_skipping, self._is_skipping = self._is_skipping, False
        return was_skipping and phase == self._phases[(self._count - 1) % POOL_EVENTS]

    def arrival(self, now_ns: int) -> None:
        """The rank hands over its first gradients within a phase."""
        if self._first < 0:
            return
        phase = self._phases[(self._count - 1) % POOL_EVENTS]
        if self._record(now_ns, phase):
            self._marks[(self._count - 1) % POOL_EVENTS] |= ARRIVAL
        else:
            self._give_up()

    def _give_up(self) -> None:
        """The running step is not timed; its events are free but the first, which ends another."""
        self._count, self._first = self._first + 1, _NOT_TIMED

    def is_on_stream(self) -> bool:
        """Whether the calling thread gives its work to the loop's stream."""
        try:
            return self.failed or self._current_stream() == self._stream
        except Exception as error:  # noqa: BLE001  # as outcome_of does, without its cost
            self._device_failed(error)
            return True

    def _take_stream(self) -> bool:
        """From now on events go into the current stream; returns whether it is the one before."""
        stream = self._or_fail(outcome_of(self._current_stream)) or self._stream
        is_same = stream == self._stream
        self._stream, self._query = stream, stream.query
        return is_same

    def wait_ended(self, kind: int, *, is_group: bool) -> None:
        """The boundary recorded last ends a wait for collectives of a kind, by index; -1 for none.

        Args:
            kind: index of the kind.
            is_group: whether it joined the whole group, and not two ranks.
        """
        index = (self._count - 1) % POOL_EVENTS
        before = (self._count - 2) % POOL_EVENTS
        if self._first < 0 or self._count - 2 < self._first or self._phases[before] != SYNC:
            return
        self._marks[index] |= (GROUP_END if is_group else 0) | (kind + 1) << KIND_SHIFT

    def end(self, now_ns: int) -> tuple[int, int]:
        """Ends the step and begins the next; the numbers of its first and last event, or -1."""
        first, last = self._first, self._count - 1
        is_same = self._take_stream()
        index = last % POOL_EVENTS
        has_event = first >= 0 and is_same and last > first
        if not (has_event and self._host_ns[index] == now_ns and self._phases[index] == OTHER):
            if self._record(now_ns, OTHER, is_first=first < 0):
                last = self._count - 1
            else:
                first = last = _NOT_TIMED
        if self.overflowed:
            self.overflowed, self.stride = False, self.stride * 2
        self._first, self._waits, self._is_skipping = last, 0, False
        return (first, last) if first >= 0 and last > first else (_NOT_TIMED, _NOT_TIMED)

    def _record(self, now_ns: int, phase: int, *, is_first: bool = False) -> bool:
        """Puts an event into the stream; False where the step can have none."""
        count = self._count
        if self._first >= 0 and not is_first and count - self._first >= MAX_EVENTS:
            self.overflowed = True
            return False
        if count - self._oldest >= POOL_EVENTS or self.failed:
            return False
        index = count % POOL_EVENTS
        try:
            if self._is_capturing():
                return False
            # An empty stream: the device has done all it was given, and waits for the host.
            is_waiting = self._phases[index - 1] == SYNC
            self._marks[index] = CAUGHT_UP if not is_waiting and self._query() else 0
            self._records[index](self._stream)
        except Exception as error:  # noqa: BLE001  # as outcome_of does, without its cost
            self._device_failed(error)
            return False
        self._host_ns[index], self._phases[index] = now_ns, phase
        self._count = count + 1
        return True

    def _device_failed(self, error: Exception) -> None:
        """The device, or our use of it, has failed, which is reported once."""
        self.failed = True
        self._fail(error)

    def _or_fail(self, outcome: R | Exception) -> R | None:
        """What the device answered; None where it has failed, which is reported once."""
        if not isinstance(outcome, Exception):
            return outcome
        self._device_failed(outcome)
        return None

    def has_passed(self, last: int) -> bool:
        """Whether the device has passed a step's last event, and so all before it."""
        return bool(self._or_fail(outcome_of(self._events[last % POOL_EVENTS].query)))

    def release(self, last: int) -> None:
        """Frees the events before a step's last one, which begins the next step."""
        self._oldest = last

    def phases_of(self, first: int, last: int) -> Sequence[int]:
        """Codes of the phases between the events of a step."""
        return [self._phases[number % POOL_EVENTS] for number in range(first, last)]

    def measure(self, first: int, last: int, now_ns: int) -> DeviceTimes | None:
        """The times of a step that the device has passed; None where the device has failed."""
        return self._or_fail(outcome_of(self._measure, first, last, now_ns))

    def _measure(self, first: int, last: int, now_ns: int) -> DeviceTimes:
        begin_index, end_index = first % POOL_EVENTS, last % POOL_EVENTS
        events, host_ns, marks, phases = (
            _slice(values, begin_index, end_index)
            for values in (self._events, self._host_ns, self._marks, self._phases)
        )
        elapsed = _slice(self._elapsed, begin_index, end_index)
        spans = [measure(end) * _MS for measure, end in zip(elapsed, events[1:], strict=False)]
        positions = list(accumulate(spans, initial=0.0))
        # No event passes before the host has recorded it.
        low = max(map(sub, host_ns, positions))
        position_ns, begin = positions[-1], low
        if self._passed == first and not reduce(or_, marks) & CAUGHT_UP:
            begin = min(max(low, self._passed_ns), max(low, now_ns - position_ns))
        self._passed, self._passed_ns = last, begin + position_ns
        return self._divider.divide(StepEvents(phases, marks, host_ns, spans, positions, begin))


def _slice(values: list[T], begin: int, end: int) -> list[T]:
    """From one event to another of the pool, the last one included."""
    return values[begin : end + 1] if begin <= end else values[begin:] + values[: end + 1]
