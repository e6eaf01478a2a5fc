"""Observes the steps of a monitor: samples operations, polls switches, arms the hang watch.

The recorder wakes it once a second, when the file of switches is polled, and in sampled steps; any
other step costs two comparisons.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.hangs.rank_watch import HangWatch
from lockstep.monitor.live import LiveMonitor
from lockstep.recorder.device import find_device
from lockstep.recorder.operations import OperationRecorder
from lockstep_outcomes.progress.hangs import (
    HANG_TIMEOUT_SECONDS,
    PAUSE_TIMEOUT_SECONDS,
    HangTimeouts,
)
from lockstep_records.file_access.own_files import replace_own_file
from lockstep_records.files.operations import OperationWriter, operations_path
from lockstep_records.files.rank_files import answer_path, trace_path
from lockstep_records.files.switches import (
    MAX_HANG_SECONDS,
    MAX_SAMPLE_EVERY,
    ProfileRequest,
    Switches,
    read_switches,
    switches_path,
)
from lockstep_records.page.writer import NoPageError, RankIdentity
from lockstep_records.text.durations import format_duration, parse_duration

_FREE_BYTES = 256 << 20  # that must be free on the tmpfs before a trace is taken


class Profiler:
    """Answers each request for a trace once."""

    def __init__(self, page: Path, rank: int) -> None:
        self.running = False
        self._page, self._rank = page, rank
        self._answered = ""
        self._profile: Any = None
        self._request: ProfileRequest | None = None
        self._steps_left = 0
        self._stalls: dict[str, float] = {}

    def begin(self, request: ProfileRequest) -> None:
        """Starts the trace, unless the request is for others, was answered or cannot be met."""
        is_for_us = request.ranks is None or self._rank in request.ranks
        if not is_for_us or self.running or request.id == self._answered:
            return
        self._answered, self._request = request.id, request
        # A rank that was restarted meets the request of before again.
        if answer_path(self._page, request.id).exists():
            return
        if refusal := self._refusal():
            self._answer({"error": refusal})
            return
        before = time.perf_counter()
        import torch.profiler  # noqa: PLC0415  # torch is loaded already

        self._profile = torch.profiler.profile()
        self._profile.start()
        self._stalls = {"start_seconds": time.perf_counter() - before}
        self._steps_left, self.running = request.steps, True

    def _refusal(self) -> str:
        if "torch" not in sys.modules:
            return "the process has not loaded torch"
        free = os.statvfs(self._page.parent)
        if free.f_bavail * free.f_frsize < _FREE_BYTES:
            return f"{self._page.parent} has less than {_FREE_BYTES >> 20} MiB free"
        return ""

    def step_ended(self) -> None:
        """Counts a step; after the last one the trace is written."""
        assert self._request is not None
        self._steps_left -= 1
        if self._steps_left:
            return
        self.running = False
        before = time.perf_counter()
        self._profile.stop()
        stopped = time.perf_counter()
        path = trace_path(self._page, self._request.id)
        temporary_path = path.with_name(f".{path.name}")
        self._profile.export_chrome_trace(str(temporary_path))
        temporary_path.replace(path)  # `lockstep profile` waits for this name
        self._profile = None
        written = time.perf_counter()
        self._stalls |= {"stop_seconds": stopped - before, "export_seconds": written - stopped}
        self._answer({**self._stalls, "bytes": path.stat().st_size, "steps": self._request.steps})

    def give_up(self) -> None:
        """Ends a trace that is being taken; nothing is written."""
        self.running = False
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()  # torch would go on recording, and crash at the end of the process

    def _answer(self, outcome: dict[str, Any]) -> None:
        assert self._request is not None
        path = answer_path(self._page, self._request.id)
        replace_own_file(path, json.dumps({"rank": self._rank, **outcome}))
        log.warning("profile %s of rank %d: %s", self._request.id, self._rank, outcome)


log = logging.getLogger("lockstep")
SAMPLE_EVERY = 64
_POLL_NS = 1_000_000_000
_NEVER = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchSettings:
    """Settings of a rank at its start; switches may override them later.

    Attributes:
        sample_every: operations of every step divisible by it are recorded; 0 for none.
        hang_timeout_seconds: own time-out of the hang watch; 0 turns it off, None is the default.
        pause_timeout_seconds: the same in a planned pause.
    """

    sample_every: int = SAMPLE_EVERY
    hang_timeout_seconds: float | None = None
    pause_timeout_seconds: float | None = None

    @property
    def timeouts(self) -> HangTimeouts:
        """The time-outs, with the defaults where the rank has none of its own."""
        hang, pause = self.hang_timeout_seconds, self.pause_timeout_seconds
        return HangTimeouts(
            step_seconds=HANG_TIMEOUT_SECONDS if hang is None else hang,
            pause_seconds=PAUSE_TIMEOUT_SECONDS if pause is None else pause,
        )


class StepWatch:
    """Observer of one monitor's steps; ``watch_steps`` creates it.

    Args:
        settings: valid where no switch overrides them.
        now_ns: monotonic nanoseconds.

    Attributes:
        operations: recorder of sampled operations; None where the page's folder has no room.
    """

    def __init__(
        self,
        monitor: LiveMonitor,
        page: Path,
        identity: RankIdentity,
        settings: WatchSettings,
        now_ns: int,
    ) -> None:
        self._monitor, self._parts = monitor, monitor.parts
        self._settings = settings
        self._sample_every = settings.sample_every
        self._path = switches_path(page.parents[1])
        self._file_version: tuple[int, int] | None = None
        self._poll_ns = 0
        self._last_ns, self._last_step = now_ns, -1  # of the last poll
        parts = monitor.parts
        hang_watch = partial(
            HangWatch, page, settings.timeouts, now_ns, self._is_device_busy, parts
        )
        self._hang = parts.run("hang_watch", hang_watch)
        self._report_timeouts(settings.hang_timeout_seconds, settings.pause_timeout_seconds)
        self._profiler = Profiler(page, identity.rank)
        self._has_device = False
        self.operations = parts.run("operations", self._create_operations, page, identity)
        parts.call_when_off("operations", self._end_operations)
        parts.call_when_off("profiler", self._profiler.give_up)

    def _is_device_busy(self) -> bool | None:
        # The recorder of a monitor that is closed is another.
        return self._monitor.recorder.is_device_busy()

    def _create_operations(self, page: Path, identity: RankIdentity) -> OperationRecorder | None:
        try:
            writer = OperationWriter(operations_path(page), identity.rank)
        except NoPageError as error:
            log.warning("no operations are recorded: %s", error)
            return None
        stage = dict(identity.mesh).get("pp", 0)
        return OperationRecorder(self._monitor.recorder, writer, stage, parts=self._parts)

    def _end_operations(self) -> None:
        operations, self.operations = self.operations, None
        if operations is not None:
            operations.close()

    def _report_timeouts(self, hang_seconds: float | None, pause_seconds: float | None) -> None:
        """Puts the rank's own time-outs into the page, for who judges it from outside."""
        for name, seconds in (("hang", hang_seconds), ("pause", pause_seconds)):
            if seconds is not None:
                self._monitor.reports.description(f"{name}_timeout_seconds", seconds)

    def step_ended(self, now_ns: int, step: int) -> None:
        """Does what is due at the end of a step."""
        operations, parts = self.operations, self._parts
        if operations is not None and operations.sampling:
            parts.run("operations", operations.end, now_ns)
        if self._profiler.running:
            parts.run("profiler", self._profiler.step_ended)
        if now_ns >= self._poll_ns:
            if self._hang is not None:
                step_ns = (now_ns - self._last_ns) // max(1, step - self._last_step)
                self._hang.steps_ns.append(step_ns)
            self._last_ns, self._last_step = now_ns, step
            self.poll(now_ns)
        every, operations = self._sample_every, self.operations
        if every and (step + 1) % every == 0 and operations is not None and self._monitor.enabled:
            parts.run("operations", operations.begin, step + 1, now_ns)
        self._wake_for(step + 1)

    def _wake_for(self, step: int) -> None:
        """Wakes for the next step, or for the one before the next sample, and in a second."""
        # A sample begins at the end of the step before it, where its first boundary is.
        every, recorder = self._sample_every, self._monitor.recorder
        is_sampling = self.operations is not None and self.operations.sampling
        is_busy = is_sampling or self._profiler.running
        before_sample = (step // every + 1) * every - 1 if every else _NEVER
        recorder.wake_step = step if is_busy else before_sample
        recorder.wake_ns = self._poll_ns

    def poll(self, now_ns: int) -> None:
        """Applies the file of switches if it has changed, and keeps the hang watch armed."""
        self._poll_ns = now_ns + _POLL_NS
        if not self._has_device:
            self.find_device()
        if self._hang is not None and now_ns >= self._hang.rearm_ns:
            self._parts.run("hang_watch", self._hang.arm, now_ns)
        self._parts.run("switches", self._read_switches, now_ns)

    def _read_switches(self, now_ns: int) -> None:
        try:
            status = os.stat(self._path)  # noqa: PTH116  # in the loop: the plain call is quicker
        except OSError:
            return
        # With the inode: two files written within one tick of the file system's clock differ in it.
        version = (status.st_mtime_ns, status.st_ino)
        if version == self._file_version:
            return
        self._file_version = version
        try:
            switches = read_switches(self._path)
        except ValueError as error:
            log.warning("switches are left as they were: %s", error)
            return
        self._apply(switches, now_ns)

    def find_device(self) -> None:
        """Uses the GPU once a step has: before, the loop may not have chosen its device yet."""
        device = self._parts.run("device_events", find_device)
        if device is not None:
            self._has_device = True
            self._parts.run("device_events", self._monitor.recorder.use_device, device)

    def _apply(self, switches: Switches, now_ns: int) -> None:
        settings = self._settings
        every = switches.sample_every
        self._sample_every = settings.sample_every if every is None else every
        timeout_seconds = switches.hang_seconds
        if timeout_seconds is None:
            timeout_seconds = settings.timeouts.step_seconds
        if self._hang is not None:
            self._parts.run("hang_watch", self._hang.set_timeout, timeout_seconds, now_ns)
        self._report_timeouts(timeout_seconds, None)
        if switches.profile is not None:
            self._parts.run("profiler", self._profiler.begin, switches.profile)
        if switches.enabled and not self._monitor.enabled:
            self._monitor.resume(now_ns)
        elif self._monitor.enabled and not switches.enabled:
            self._monitor.suspend()

    def stop(self) -> None:
        """Stops the hang watch and the sampling; there are no more steps."""
        if self._hang is not None:
            self._parts.run("hang_watch", self._hang.stop)
        self._sample_every = 0
        self._parts.run("operations", self._end_operations)


def settings_from(environment: Mapping[str, str]) -> WatchSettings:
    """The settings by LOCKSTEP_SAMPLE_EVERY, in steps, and the two time-outs, such as ``2m``.

    Raises:
        ValueError: a variable is invalid; the text names it.
    """
    text = environment.get("LOCKSTEP_SAMPLE_EVERY", "") or str(SAMPLE_EVERY)
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_SAMPLE_EVERY):
        raise ValueError(
            f"LOCKSTEP_SAMPLE_EVERY={text!r} must be a whole number of steps from 0 to"
            f" {MAX_SAMPLE_EVERY}; 0 turns it off"
        )
    return WatchSettings(
        sample_every=int(text),
        hang_timeout_seconds=_timeout_from(environment, "LOCKSTEP_HANG_TIMEOUT"),
        pause_timeout_seconds=_timeout_from(environment, "LOCKSTEP_PAUSE_TIMEOUT"),
    )


def _timeout_from(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name, "")
    if not text:
        return None
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}; 0s turns it off") from error
    if seconds > MAX_HANG_SECONDS:
        raise ValueError(f"{name}={text!r} must be at most {format_duration(MAX_HANG_SECONDS)}")
    return seconds


def watch_steps(
    monitor: LiveMonitor, page: Path, identity: RankIdentity, settings: WatchSettings
) -> None:
    """Observes the steps of a monitor whose page is at ``page``."""
    step_watch = StepWatch(monitor, page, identity, settings, now_ns=time.monotonic_ns())
    monitor.observer = step_watch
