"""What stands beside a monitor and is asked at each step's end: samples, switches, hang watch.

The monitor asks once a second, when the file of switches is looked at, and in sampled steps; any
other step costs two comparisons.
"""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.hangs.rank_watch import HangWatch
from lockstep.monitor.live import LiveMonitor
from lockstep.monitor.profiling import Profiler
from lockstep.monitor.suspended import turn
from lockstep.recorder.device_events import device_events
from lockstep.recorder.device_numbers import DeviceNumbers, device_numbers
from lockstep.recorder.operations import OperationRecorder
from lockstep_records.hangs import HANG_TIMEOUT_SECONDS
from lockstep_records.operations import OperationWriter, operations_path
from lockstep_records.page.writer import NoPageError, RankIdentity
from lockstep_records.switches import (
    MAX_HANG_SECONDS,
    MAX_SAMPLE_EVERY,
    Switches,
    read_switches,
    switches_path,
)

log = logging.getLogger("lockstep")
SAMPLE_EVERY = 64
_LOOK_NS = 1_000_000_000
_NEVER = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchSettings:
    """What a rank is told at birth; switches may tell otherwise later.

    Attributes:
        sample_every: operations of each so-many-th step are recorded; 0 for none.
        hang_seconds: floor of the hang watch; 0 turns it off.
    """

    sample_every: int = SAMPLE_EVERY
    hang_seconds: float = HANG_TIMEOUT_SECONDS


class StepWatch:
    """Asked after each step of one monitor; made by ``watch_steps``.

    Args:
        monitor: whose steps.
        page: path of its page.
        identity: of the rank.
        settings: what holds where no switch says otherwise.
        now_ns: monotonic clock.
    """

    def __init__(
        self,
        monitor: LiveMonitor,
        page: Path,
        identity: RankIdentity,
        settings: WatchSettings,
        now_ns: int,
    ) -> None:
        self._monitor = monitor
        self._own = settings
        self._sample_every = settings.sample_every
        self._path = switches_path(page.parents[1])
        self._seen: tuple[int, int] | None = None
        self._look_ns = 0
        self._last_ns, self._last_step = now_ns, -1
        self._hang = HangWatch(page, settings.hang_seconds, now_ns)
        self._profiler = Profiler(page, identity.rank)
        self._numbers: DeviceNumbers | None = None
        self.recorder: OperationRecorder | None = None
        try:
            writer = OperationWriter(operations_path(page), identity.rank)
            self.recorder = OperationRecorder(monitor, writer, dict(identity.mesh).get("pp", 0))
        except NoPageError as error:
            log.warning("no operations are recorded: %s", error)

    def step_ended(self, now_ns: int, step: int | None) -> None:
        """Called by the monitor; ``step`` is None when there will be no more."""
        if step is None:
            self._stop()
            return
        recorder = self.recorder
        if recorder is not None and recorder.sampling:
            recorder.end(now_ns)
        if self._device_waits():
            self._ask_device()
        if self._profiler.running:
            self._profiler.step_ended()
        if now_ns >= self._look_ns:
            self._hang.steps_ns.append((now_ns - self._last_ns) // max(1, step - self._last_step))
            self._last_ns, self._last_step = now_ns, step
            self.look(now_ns)
        every = self._sample_every
        if every and (step + 1) % every == 0 and recorder is not None and self._monitor.enabled:
            recorder.begin(step + 1, now_ns)
        self._wake_for(step + 1)

    def _wake_for(self, step: int) -> None:
        """Asks for the next step, or for the one before the next sample, and in a second."""
        every, recorder = self._sample_every, self._monitor.recorder
        samples = self.recorder is not None and self.recorder.sampling
        busy = samples or self._profiler.running or self._numbers is not None
        before_sample = (step // every + 1) * every - 1 if every else _NEVER
        recorder.wake_step = step if busy else before_sample
        recorder.wake_ns = self._look_ns

    def look(self, now_ns: int) -> None:
        """Looks whether somebody has turned a switch, and keeps the hang watch armed."""
        self._look_ns = now_ns + _LOOK_NS
        if self._numbers is None:
            self._find_device()
        if now_ns >= self._hang.rearm_ns:
            self._hang.arm(now_ns)
        try:
            found = os.stat(self._path)  # noqa: PTH116  # once a second in the loop: the plain call
        except OSError:
            return
        seen = (found.st_mtime_ns, found.st_ino)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            switches = read_switches(self._path)
        except ValueError as error:
            log.warning("switches are left as they were: %s", error)
            return
        self._apply(switches, now_ns)

    def _find_device(self) -> None:
        """The first work on a GPU may come after ``attach``."""
        self._numbers = self._monitor.recorder.numbers = device_numbers()
        if self.recorder is not None:
            self.recorder.device = device_events()

    def _device_waits(self) -> bool:
        recorder, numbers = self.recorder, self._numbers
        return numbers is not None and (
            numbers.waits
            or (recorder is not None and recorder.device is not None and recorder.device.waits)
        )

    def _ask_device(self) -> None:
        """Takes in what the device has passed since; waits for nothing."""
        recorder, numbers = self.recorder, self._numbers
        dropped = 0
        if numbers is not None:
            while (late := numbers.come()) is not None:
                self._monitor.tell_late(late)
            dropped += numbers.dropped
        if recorder is not None and recorder.device is not None:
            recorder.resolve()
            dropped += recorder.device.dropped
        if dropped:
            self._monitor.tell_dropped(dropped)

    def _apply(self, switches: Switches, now_ns: int) -> None:
        own = self._own
        every = switches.sample_every
        self._sample_every = own.sample_every if every is None else every
        floor = switches.hang_seconds
        self._hang.set_floor(own.hang_seconds if floor is None else floor, now_ns)
        if switches.profile is not None:
            self._profiler.begin(switches.profile)
        if switches.enabled != self._monitor.enabled:
            turn(self._monitor, on=switches.enabled, now_ns=now_ns)

    def _stop(self) -> None:
        self._hang.stop()
        self._sample_every = 0
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None


def settings_from(environment: Mapping[str, str]) -> WatchSettings:
    """The settings by LOCKSTEP_SAMPLE_EVERY (steps) and LOCKSTEP_HANG_SECONDS.

    Raises:
        ValueError: a variable has a value that cannot be; the text names it.
    """
    every = _number(environment, "LOCKSTEP_SAMPLE_EVERY", SAMPLE_EVERY, MAX_SAMPLE_EVERY)
    if not every.is_integer():
        raise ValueError(f"LOCKSTEP_SAMPLE_EVERY={every} must be a whole number of steps")
    return WatchSettings(
        sample_every=int(every),
        hang_seconds=_number(
            environment, "LOCKSTEP_HANG_SECONDS", HANG_TIMEOUT_SECONDS, MAX_HANG_SECONDS
        ),
    )


def _number(environment: Mapping[str, str], name: str, default: float, most: float) -> float:
    text = environment.get(name, "")
    try:
        value = float(text or default)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise ValueError(f"{name}={text!r} must be a number from 0 to {most:g}; 0 turns it off")
    return value


def watch_steps(
    monitor: LiveMonitor, page: Path, identity: RankIdentity, settings: WatchSettings
) -> None:
    """Puts a watch beside a monitor, whose page lies at ``page``."""
    watch = StepWatch(monitor, page, identity, settings, now_ns=time.monotonic_ns())
    monitor.each_step = watch.step_ended
    monitor.recorder.wake_step = monitor.recorder.wake_ns = 0
