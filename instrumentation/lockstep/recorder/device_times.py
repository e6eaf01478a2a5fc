"""From the events of a step to its times: own work, waits, and how long the host held it up.

``device_times.c`` does the same in C.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

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
_OF_LAUNCHES, _INSIDE = frozenset({FORWARD, BACKWARD, OPTIMIZER}), frozenset({BACKWARD, OPTIMIZER})
_OF_LOADER = frozenset({DATA, OTHER})
_NS = 1e-9


@dataclass(slots=True)
class StepEvents:
    """The events of a step that the device has passed.

    Attributes:
        phases: code of the phase that begins with each [events].
        marks: what else is known of each [events].
        host_ns: monotonic nanoseconds at which the host recorded each [events].
        spans: nanoseconds of the device between each and the next [events - 1].
        positions: nanoseconds of the device from the first to each [events].
        begin: monotonic nanoseconds at which the device passed the first.
    """

    phases: Sequence[int]
    marks: Sequence[int]
    host_ns: Sequence[int]
    spans: Sequence[float]
    positions: Sequence[float]
    begin: float


@dataclass(slots=True)
class DeviceTimes:
    """A step as the device went through it.

    Attributes:
        begin: monotonic nanoseconds of its first event.
        spans: nanoseconds between each event and the next [events - 1].
        begin_ns: monotonic time of its beginning.
        seconds: by phase code; those of init and restore are no part of the step.
        total: duration of the step in seconds.
        idle: seconds in which the stream waited for the host, by phase code.
        first_arrival_ns: monotonic time at which the stream came to its first collective, or 0.
        last_arrival_ns: end of its last group collective less all waiting so far, or 0.
        collective: seconds waited for collectives, by index of their kind.
        is_launch_bound: whether launches held up a tenth of the step or more.
        unexplained: nanoseconds of forward that ended with an empty stream for no known reason.
    """

    begin: float
    spans: Sequence[float]
    begin_ns: int = 0
    seconds: list[float] = field(default_factory=lambda: [0.0] * NUM_PHASES)
    total: float = 0.0
    idle: list[float] = field(default_factory=lambda: [0.0] * NUM_PHASES)
    first_arrival_ns: int = 0
    last_arrival_ns: int = 0
    collective: list[float] = field(default_factory=lambda: [0.0] * len(COLLECTIVE_KINDS))
    is_launch_bound: bool = False
    unexplained: float = 0.0

    @property
    def boundaries_ns(self) -> list[int]:
        """Monotonic times of all events."""
        return [*map(int, accumulate(self.spans, initial=self.begin))]


class StepDivider:
    """Divides steps into phases; remembers how long their segments usually take.

    A segment is known by its position in the step and its phase. Runs once a step over all of its
    events, and is written for speed.
    """

    def __init__(self) -> None:
        self._phases = [_UNKNOWN] * MAX_EVENTS
        self._device_ns = [0.0] * MAX_EVENTS
        self._host_ns = [0.0] * MAX_EVENTS

    def divide(self, events: StepEvents) -> DeviceTimes:
        """Times of a step."""
        out = DeviceTimes(begin=events.begin, spans=events.spans)
        spent, idles, is_optimized = [0.0] * NUM_PHASES, [0.0] * NUM_PHASES, False
        usual_phases, usual_ns, usual_host_ns = self._phases, self._device_ns, self._host_ns
        begin, before_ns, ends = events.begin, events.host_ns[0], events.host_ns[1:]
        segments = zip(events.phases, events.spans, events.marks[1:], ends, strict=False)
        for position, (phase, span, bits, now_ns) in enumerate(segments):
            spent[phase] += span
            if phase in _OF_LAUNCHES or (phase == OTHER and not is_optimized):
                is_optimized = is_optimized or phase == OPTIMIZER
                usual = usual_ns[position]
                if bits & CAUGHT_UP or usual_phases[position] != phase or span > 1.1 * usual:
                    self._divide_unusual(out, events, position, idles)
                else:
                    usual_host, host_span = usual_host_ns[position], now_ns - before_ns
                    rise = span - usual
                    usual_ns[position] = span if rise < 0 else usual + rise / _SLOWLY
                    rise = host_span - usual_host
                    usual_host_ns[position] = host_span if rise < 0 else usual_host + rise / _SLOWLY
            elif phase in _OF_LOADER:
                # Nothing is launched here, so what lasts until the host comes is waiting.
                until_host = now_ns - begin - events.positions[position]
                idles[phase] += min(span, max(0.0, until_host))
            before_ns = now_ns
        out.seconds[:] = [value * _NS for value in spent]
        out.idle[:] = [value * _NS for value in idles]
        _find_arrivals(out, events)
        _finish(out)
        return out

    def _divide_unusual(
        self, out: DeviceTimes, events: StepEvents, position: int, idles: list[float]
    ) -> None:
        """Adds what the host held up in a segment that is longer than usual or ends idle."""
        phase, bits = events.phases[position], events.marks[position + 1]
        span = events.spans[position]
        # An empty stream inside torch's own code: the host launches too slowly. Elsewhere the host
        # may just have waited for the device, by item() or the like.
        is_inside = phase in _INSIDE or events.phases[position + 1] == SYNC or bits & ARRIVAL
        host_span = float(events.host_ns[position + 1] - events.host_ns[position])
        if bits & CAUGHT_UP and is_inside:
            host_span = -1.0
        until_host = events.host_ns[position + 1] - events.begin - events.positions[position]
        idle = self._idle(position, phase, span, host_span, until_host)
        idles[phase] += idle
        if phase == FORWARD and bits & CAUGHT_UP and not idle:
            out.unexplained += span

    def _idle(
        self, position: int, phase: int, span: float, host_span: float, until_host: float
    ) -> float:
        """Nanoseconds of a segment with work in which the stream waited for the host.

        Args:
            position: of the segment in its step.
            phase: of the segment.
            span: its nanoseconds on the device.
            host_span: its nanoseconds on the host; -1 where it ran short of launches.
            until_host: nanoseconds from its beginning to when the host had launched it.
        """
        is_known = self._phases[position] == phase
        usual = self._device_ns[position] if is_known else 0.0
        if host_span < 0:
            return max(0.0, span - usual)
        if not is_known:
            self._phases[position] = phase
            self._device_ns[position], self._host_ns[position] = span, host_span
            return 0.0
        idle = min(span - usual, host_span - self._host_ns[position], until_host)
        if idle < _LEAST_SHARE * span:
            idle = 0.0
        # What the host did not hold up is learned.
        span, host_span, usual_host = span - idle, host_span - idle, self._host_ns[position]
        rise, host_rise = (span - usual) / _SLOWLY, (host_span - usual_host) / _SLOWLY
        self._device_ns[position] = span if span < usual else usual + rise
        self._host_ns[position] = host_span if host_span < usual_host else usual_host + host_rise
        return idle


def _find_arrivals(out: DeviceTimes, events: StepEvents) -> None:
    """The step's first and last arrival, and its waits by kind of collective."""
    phases, marks, spans, waited = events.phases, events.marks, events.spans, 0.0
    waits = [number for number, phase in enumerate(phases[:-1]) if phase == SYNC]
    for number in waits:
        span, bits = spans[number], marks[number + 1]
        waited += span
        if bits & GROUP_END:
            out.last_arrival_ns = int(events.begin + events.positions[number + 1] - waited)
        if bits >> KIND_SHIFT:
            out.collective[(bits >> KIND_SHIFT) - 1] += span * _NS
    arrivals = [number for number, bits in enumerate(marks) if bits & ARRIVAL]
    first = min((number for number in (*waits, *arrivals) if number), default=0)
    if first:
        out.first_arrival_ns = int(events.begin + events.positions[first])


def _finish(out: DeviceTimes) -> None:
    # A forward that ends with an empty stream may have been waited for; not so where the backward
    # after it was short of launches as well.
    if out.idle[BACKWARD] > out.seconds[BACKWARD] / 2 and not out.idle[FORWARD]:
        out.idle[FORWARD] = out.unexplained * _NS
    before = out.seconds[INIT] + out.seconds[RESTORE]
    out.begin_ns = int(out.begin) + int(before * 1e9)
    out.total = sum(out.seconds) - before
    launches = out.idle[FORWARD] + out.idle[BACKWARD] + out.idle[OPTIMIZER]
    out.is_launch_bound = launches >= _LEAST_SHARE * out.total > 0
