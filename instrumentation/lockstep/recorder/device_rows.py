"""Rows that wait for the device: written with the host's times, then once more with the device's.

Time goes into the totals when a row is settled, in the order of the rows: with the device's times
where they come and the host's where they do not, and never both.
"""

import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias
from zlib import crc32

from lockstep.recorder.device import Device
from lockstep.recorder.device_timeline import DeviceTimeline
from lockstep.recorder.device_times import DeviceTimes
from lockstep.recorder.phases import BACKWARD, DATA, FLAG, FORWARD, IN_STEP, OPTIMIZER, OTHER
from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.page.layout import (
    COLLECTIVE_KINDS,
    PERIODIC,
    RING_OFFSET,
    ROW,
    ROW_NUMBERS,
    SLOT,
)
from lockstep_records.page.writer import PageWriter

MAX_PENDING = 64
_MOST_AT_ONCE = 4  # steps that are settled at the end of one
_PHASE_SECONDS = SLOT.word("phase_seconds")
_COLLECTIVE_SECONDS = SLOT.word("collective_seconds")
_IDLE_SECONDS = PERIODIC.word("host_bound_seconds") - DATA
_DEVICE_STEPS, _LAUNCH_BOUND_STEPS, _DROPPED, _STRIDE = (
    PERIODIC.word(name)
    for name in ("device_steps", "launch_bound_steps", "device_dropped", "device_stride")
)
_KIND_INDICES: dict[str | None, int] = {None: -1}
_KIND_INDICES |= {kind: index for index, kind in enumerate(COLLECTIVE_KINDS)}
_STRIDE_BIT = PERIODIC.presence["device_stride"]
_NUMBER, _TIMES = struct.Struct("<I"), struct.Struct(f"<qqqf{len(STEP_PHASES)}f")
_TWO_INTS, _FLOAT, _INT = struct.Struct("<IH"), struct.Struct("<f"), struct.Struct("<I")
_START_AT, _PRESENT_AT, _IDLE_AT, _CHECKSUM_AT = (
    ROW.offsets[name] for name in ("start_ns", "present", "host_bound_seconds", "checksum")
)
assert ROW.offsets["flags"] == _PRESENT_AT + 4
assert ROW.offsets["data_seconds"] == _START_AT + 28  # start, two arrivals and seconds before it
_FIRST_BIT, _LAST_BIT, _IDLE_BIT = (
    ROW.presence[name] for name in ("first_arrival_ns", "last_arrival_ns", "host_bound_seconds")
)
_OWN_WORK = (FORWARD, BACKWARD, OPTIMIZER, OTHER)


StepPassed: TypeAlias = Callable[[Sequence[int], Sequence[int]], object]
"""Takes the monotonic nanoseconds of a step's boundaries and the phases between them."""


@dataclass(slots=True)
class PendingRow:
    """A row whose time is not in the totals yet.

    Attributes:
        first, last: its first and last event; -1 where it has none.
        parts: seconds of its phases by the host, in the order of the row.
        total: its duration by the host.
        collective: seconds of its waits by the host, by kind of collective.
        callback: takes the step once the device has passed it.
    """

    number: int
    first: int
    last: int
    parts: Sequence[float]
    total: float
    collective: Sequence[float]
    callback: StepPassed | None = None


class DeviceRows:
    """The rows of a recorder that wait for a device."""

    def __init__(
        self, device: Device, page: PageWriter, part_failed: Callable[[str, Exception], None]
    ) -> None:
        self.timeline = DeviceTimeline(device, partial(part_failed, "device_events"))
        self._page = page
        self._pending: deque[PendingRow] = deque()
        self._collective = [0.0] * len(COLLECTIVE_KINDS)
        self._stride = 1

    def hold_wait(self, kind: str | None, seconds: float) -> float:
        """Keeps the host's seconds of a wait that has ended; returns those to count at once."""
        index = _KIND_INDICES[kind]
        self.timeline.wait_ended(index, is_group=kind != "send_recv")
        if index >= 0:
            self._collective[index] += seconds
        return 0.0

    def end_step(self, now_ns: int, parts: Sequence[float], total: float) -> bool:
        """The step ends whose row is written next; returns whether the device's times may come."""
        first, last = self.timeline.end(now_ns)
        number = self._page.words[_STEPS]
        self._pending.append(PendingRow(number, first, last, parts, total, self._collective))
        self._collective = [0.0] * len(COLLECTIVE_KINDS)
        if self.timeline.stride != self._stride:
            self._stride = self.timeline.stride
            periodic = self._page.periodic.words
            periodic[_STRIDE] = self._stride
            periodic[_PRESENT] |= _STRIDE_BIT
        return first >= 0

    def call_when_passed(self, callback: StepPassed) -> None:
        """Has it called once the device has passed the step that ended last, if it ever has."""
        if self._pending:
            self._pending[-1].callback = callback

    def settle(self, now_ns: int, keep: int = 1) -> None:
        """Settles the oldest rows that the device has passed, a few at a time; waits for none.

        Args:
            now_ns: monotonic nanoseconds.
            keep: newest rows to leave: a callback may still be added to that of the step that ends.
        """
        pending, timeline = self._pending, self.timeline
        for _ in range(_MOST_AT_ONCE):
            if len(pending) <= keep:
                break
            row = pending[0]
            if timeline.failed or row.first < 0:
                self._settle_by_host(pending.popleft())
                continue
            if not timeline.has_passed(row.last):
                if len(pending) <= MAX_PENDING:
                    break
                self._settle_by_host(pending.popleft())
                continue
            times = timeline.measure(row.first, row.last, now_ns)
            if times is None:
                break
            phases = timeline.phases_of(row.first, row.last) if row.callback else ()
            self._settle_by_device(pending.popleft(), times)
            timeline.release(row.last)
            if row.callback is not None:
                row.callback(times.boundaries_ns, phases)

    def settle_all(self, now_ns: int) -> None:
        """Settles what is left, by the host where the device has not passed it."""
        before = -1
        while self._pending and len(self._pending) != before:
            before = len(self._pending)
            self.settle(now_ns, keep=0)
        while self._pending:
            self._settle_by_host(self._pending.popleft())

    def _settle_by_host(self, row: PendingRow) -> None:
        floats = self._page.floats
        for phase, seconds in enumerate(row.parts, DATA):
            floats[_PHASE_SECONDS + phase] += seconds
        for kind, seconds in enumerate(row.collective):
            floats[_COLLECTIVE_SECONDS + kind] += seconds
        self._page.settle_step(row.total)
        self._page.periodic.words[_DROPPED] += 1
        if row.last >= 0:
            self.timeline.release(row.last)

    def _settle_by_device(self, row: PendingRow, times: DeviceTimes) -> None:
        self._rewrite(row.number, times)
        floats, periodic = self._page.floats, self._page.periodic
        for phase in range(IN_STEP.start, IN_STEP.stop):
            if times.seconds[phase]:
                floats[_PHASE_SECONDS + phase] += times.seconds[phase]
            if times.idle[phase]:
                periodic.floats[_IDLE_SECONDS + phase] += times.idle[phase]
        for kind, seconds in enumerate(times.collective):
            if seconds:
                floats[_COLLECTIVE_SECONDS + kind] += seconds
        self._page.settle_step(times.total)
        periodic.words[_DEVICE_STEPS] += 1
        periodic.words[_LAUNCH_BOUND_STEPS] += times.is_launch_bound

    def _rewrite(self, number: int, times: DeviceTimes) -> None:
        """Writes the row once more, unless the ring holds a newer one in its place."""
        file, rows = self._page.file, self._page.rows
        begin = RING_OFFSET + number % rows * ROW.size
        row = bytearray(file[begin : begin + ROW.size])
        if _NUMBER.unpack_from(row)[0] != number % ROW_NUMBERS:
            return
        first, last = times.first_arrival_ns, times.last_arrival_ns
        present, flags = _TWO_INTS.unpack_from(row, _PRESENT_AT)
        present = present & ~(_FIRST_BIT | _LAST_BIT) | _IDLE_BIT
        present |= (_FIRST_BIT if first else 0) | (_LAST_BIT if last else 0)
        flags = flags & ~FLAG["device_pending"] | FLAG["device"]
        idle = sum(times.idle[phase] for phase in _OWN_WORK)
        parts = times.seconds[IN_STEP]
        _TIMES.pack_into(row, _START_AT, times.begin_ns, first, last, times.total, *parts)
        _TWO_INTS.pack_into(row, _PRESENT_AT, present, flags)
        _FLOAT.pack_into(row, _IDLE_AT, idle)
        _INT.pack_into(row, _CHECKSUM_AT, crc32(memoryview(row)[:_CHECKSUM_AT]))
        file[begin : begin + ROW.size] = bytes(row)


_STEPS, _PRESENT = SLOT.word("steps"), PERIODIC.word("present")
