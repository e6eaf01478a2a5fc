"""From the events of a step to its times: own work, waits, and how long the host held it up.

``device_times.c`` does the same in C.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.recorder.phases import (
    BACKWARD,
    DATA,
    FORWARD,
    INIT,
    NUM_PHASES,
    OPTIMIZER,
    OTHER,
    RESTORE,
    SYNC,
)
from lockstep_records.page.layout import COLLECTIVE_KINDS

MAX_EVENTS = 512  # of a step
# What is known of an event besides its phase; the kind of a collective lies above these bits.
CAUGHT_UP, ARRIVAL, GROUP_END, KIND_SHIFT = 1, 2, 4, 3
# A segment's usual length follows a longer one that slowly, and a shorter one at once.
_SLOWLY = 64.0
_LEAST_SHARE = 0.1  # of a segment or a step: less time lost to the host is noise
_UNKNOWN = -1
_OF_LAUNCHES = (FORWARD, BACKWARD, OPTIMIZER)
_NS = 1e-9


@dataclass(slots=True)
class StepEvents:
    """The events of a step that the device has passed.

    Attributes:
        phases: code of the phase that begins with each [events].
        marks: what else is known of each [events].
        host_ns: monotonic nanoseconds at which the host recorded each [events].
        spans: nanoseconds of the device between each and the next [events - 1].
        begin: monotonic nanoseconds at which the device passed the first.
    """

    phases: Sequence[int]
    marks: Sequence[int]
    host_ns: Sequence[int]
    spans: Sequence[float]
    begin: float


@dataclass(slots=True)
class DeviceTimes:
    """A step as the device went through it.

    Attributes:
        begin_ns: monotonic time of its beginning.
        seconds: by phase code; those of init and restore are no part of the step.
        total: duration of the step in seconds.
        idle: seconds in which the stream waited for the host, by phase code.
        first_arrival_ns: monotonic time at which the stream came to its first collective, or 0.
        last_arrival_ns: end of its last group collective less all waiting so far, or 0.
        collective: seconds waited for collectives, by index of their kind.
        is_launch_bound: whether launches held up a tenth of the step or more.
        boundaries_ns: monotonic times of all events.
    """

    begin_ns: int = 0
    seconds: list[float] = field(default_factory=lambda: [0.0] * NUM_PHASES)
    total: float = 0.0
    idle: list[float] = field(default_factory=lambda: [0.0] * NUM_PHASES)
    first_arrival_ns: int = 0
    last_arrival_ns: int = 0
    collective: list[float] = field(default_factory=lambda: [0.0] * len(COLLECTIVE_KINDS))
    is_launch_bound: bool = False
    boundaries_ns: list[int] = field(default_factory=list)


class UsualSpans:
    """How long each segment of a step usually takes on the device and on the host, in nanoseconds.

    A segment is known by its position in the step and its phase.
    """

    def __init__(self) -> None:
        self._phases = [_UNKNOWN] * MAX_EVENTS
        self._device = [0.0] * MAX_EVENTS
        self._host = [0.0] * MAX_EVENTS

    def find(self, position: int, phase: int) -> tuple[float, float] | None:
        """Usual nanoseconds on device and host; None where it is not known."""
        if self._phases[position] != phase:
            return None
        return self._device[position], self._host[position]

    def learn(self, position: int, phase: int, device_ns: float, host_ns: float) -> None:
        """Takes in a segment in which the host did not hold up the device."""
        if self._phases[position] != phase:
            self._phases[position] = phase
            self._device[position], self._host[position] = device_ns, host_ns
            return
        self._device[position] = _towards(self._device[position], device_ns)
        self._host[position] = _towards(self._host[position], host_ns)


def _towards(usual: float, value: float) -> float:
    return value if value < usual else usual + (value - usual) / _SLOWLY


class StepDivider:
    """Divides steps into phases; remembers how long their segments usually take."""

    def __init__(self) -> None:
        self._usual = UsualSpans()

    def divide(self, events: StepEvents) -> DeviceTimes:
        """Times of a step."""
        out = DeviceTimes(boundaries_ns=[int(events.begin)])
        phases, marks = events.phases, events.marks
        at, is_optimized, unexplained = events.begin, False, 0.0
        for position, span in enumerate(events.spans):
            phase, bits = phases[position], marks[position + 1]
            until_host = events.host_ns[position + 1] - at
            at += span
            out.boundaries_ns.append(int(at))
            out.seconds[phase] += span * _NS
            is_optimized = is_optimized or phase == OPTIMIZER
            if not out.first_arrival_ns and (bits & ARRIVAL or phases[position + 1] == SYNC):
                out.first_arrival_ns = int(at)
            if bits & GROUP_END:
                out.last_arrival_ns = int(at - out.seconds[SYNC] * 1e9)
            if bits >> KIND_SHIFT:
                out.collective[(bits >> KIND_SHIFT) - 1] += span * _NS
            if phase == DATA or (phase == OTHER and is_optimized):
                # Nothing is launched here, so what lasts until the host comes is waiting.
                out.idle[phase] += min(span, max(0.0, until_host)) * _NS
            elif phase in _OF_LAUNCHES or phase == OTHER:
                idle = self._idle(events, position, until_host)
                out.idle[phase] += idle * _NS
                if phase == FORWARD and bits & CAUGHT_UP and not idle:
                    unexplained += span * _NS
        _finish(out, unexplained)
        return out

    def _idle(self, events: StepEvents, position: int, until_host: float) -> float:
        """Nanoseconds of a segment with work in which the stream waited for the host."""
        phase, bits, span = (
            events.phases[position],
            events.marks[position + 1],
            events.spans[position],
        )
        usual = self._usual.find(position, phase)
        # An empty stream inside torch's own code: the host launches too slowly. Elsewhere the host
        # may just have waited for the device, by item() or the like.
        is_inside = phase in {BACKWARD, OPTIMIZER} or events.phases[position + 1] == SYNC
        if bits & CAUGHT_UP and (is_inside or bits & ARRIVAL):
            return max(0.0, span - (usual[0] if usual else 0.0))
        host_span, idle = float(events.host_ns[position + 1] - events.host_ns[position]), 0.0
        if usual is not None:
            idle = min(span - usual[0], host_span - usual[1], until_host)
            if idle < _LEAST_SHARE * span:
                idle = 0.0
        self._usual.learn(position, phase, span - idle, host_span - idle)
        return idle


def _finish(out: DeviceTimes, unexplained: float) -> None:
    # A forward that ends with an empty stream may have been waited for; not so where the backward
    # after it was short of launches as well.
    if out.idle[BACKWARD] > out.seconds[BACKWARD] / 2 and not out.idle[FORWARD]:
        out.idle[FORWARD] = unexplained
    before = out.seconds[INIT] + out.seconds[RESTORE]
    out.begin_ns = out.boundaries_ns[0] + int(before * 1e9)
    out.total = sum(out.seconds) - before
    launches = out.idle[FORWARD] + out.idle[BACKWARD] + out.idle[OPTIMIZER]
    out.is_launch_bound = launches >= _LEAST_SHARE * out.total > 0
