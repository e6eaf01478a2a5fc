"""The kernel log and the fabric manager's, read each tick: counts, incidents and Xids."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.recent_events import RecentEvents
from lockstep_agent.sources.logs import Log, open_log
from lockstep_agent.sources.nvml.device import XidEvent
from lockstep_agent.sources.pci_tree import list_gpus
from lockstep_agent.sources.sysfs import Due, read_text
from lockstep_agent.state_file import StateFile
from lockstep_catalogue import incidents as metrics
from lockstep_catalogue.incidents import GPU_XID_INCIDENTS, PRECREATED_XIDS, XID_TABLE
from lockstep_records.kernel.incidents import NVML_EVENTS, Incidents
from lockstep_records.kernel.lines import Message
from lockstep_records.kernel.patterns import Finding

_QUIET_SECONDS = 300.0
_LOG_TIMEOUT_SECONDS = 2.0  # for the log to report the same Xid
_MAX_WAITING = 1000
_FEW_LINES = 5
_log = logging.getLogger(__name__)
_LIST_SECONDS = 10.0


class XidCorrelator:
    """Holds events back until the log had time to report the same Xid.

    Args:
        clock: wall clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: deque[XidEvent] = deque(maxlen=_MAX_WAITING)

    def ingest(self, events: Iterable[XidEvent], incidents: Incidents) -> int:
        """Takes in events, and counts those whose time has passed.

        Returns:
            Number of events that were processed by this call.
        """
        # the log's message of the same Xid may be read a tick later
        self._waiting.extend(events)
        num_processed, latest_seconds = 0, self._clock() - _LOG_TIMEOUT_SECONDS
        while self._waiting and self._waiting[0].wall_seconds <= latest_seconds:
            _count_unreported(self._waiting.popleft(), incidents)
            num_processed += 1
        return num_processed


def _count_unreported(event: XidEvent, incidents: Incidents) -> None:
    instances = "/".join(f"{instance:02d}" for instance in event.instances)
    labels = (event.address, instances, str(event.number))
    finding = Finding(
        GPU_XID_INCIDENTS,
        labels,
        ("xid", *labels, ""),
        _QUIET_SECONDS,
        facts={"witness": NVML_EVENTS},
    )
    wall_seconds = event.wall_seconds
    is_ongoing = incidents.is_ongoing(NVML_EVENTS, finding, wall_seconds)
    # without the instance: only some sources name it, and it is the same Xid of the same GPU
    is_reported = incidents.is_recent_xid(event.address, str(event.number), wall_seconds)
    if is_ongoing or not is_reported:
        text = f"NVML: Xid {event.number} of {event.address}"
        incidents.add(NVML_EVENTS, finding, Message(text, wall_seconds, wall_seconds))


class KernelLog:
    """Reads the logs of the kernel and the fabric manager, and the Xid events of the driver.

    The state file holds the counters and how far the logs were read; it is replaced atomically
    before anything is served. After a restart no message is counted twice or missed, and no counter
    falls.

    Args:
        paths: paths of the logs, by the value of the label ``log``.
        boot: file with the id of this boot of the node.
        state: file of the saved state.
        take_xids: Xid events of the driver since the last call; None where it has none.
        recent: where the newest incidents are published.
        clock: wall clock, in seconds.
    """

    name = "kernel_log"
    tier = Tier.EVERY_TICK

    def __init__(
        self,
        paths: dict[str, Path],
        boot: Path,
        sysfs: Path,
        state: StateFile,
        *,
        take_xids: Callable[[], list[XidEvent] | None] = lambda: None,
        recent: RecentEvents | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._paths, self._sysfs, self._state = paths, sysfs, state
        self._incidents, self._correlator = Incidents(), XidCorrelator(clock)
        self._take_xids, self.recent = take_xids, recent or RecentEvents()
        self._num_read = dict.fromkeys((*paths, NVML_EVENTS), 0)
        self._boot_id = read_text(boot) or ""
        self._unreadable: set[str] = set()
        self._strange: set[str] = set()
        self._logs: dict[str, Log] = self._restore(state.load())
        self._gpu_list = Due(_LIST_SECONDS)
        self._gpus: tuple[str, ...] = ()
        self._latest: tuple[Reading, ...] = ()
        self._readable: list[str] = []
        self.recent.replace(self._incidents.recent)

    def collect(self) -> tuple[Reading, ...]:
        """Counters of incidents, and of messages that the logs lost.

        Without anything new it is the very tuple of the last call, which is not rendered again.
        """
        num_before, is_listing = sum(self._num_read.values()), self._gpu_list.is_due()
        if is_listing:
            self._gpus = tuple(list_gpus(self._sysfs))
        for name, log in self._logs.items():
            self._ingest(name, log)
        events = self._take_xids()
        self._num_read[NVML_EVENTS] += self._correlator.ingest(events or (), self._incidents)
        has_news = sum(self._num_read.values()) != num_before
        if has_news:
            # saved before it is served: a crash in between must not count a message twice
            self._save()
            self.recent.replace(self._incidents.recent)
        readable = [name for name in self._logs if name not in self._unreadable]
        readable += [] if events is None else [NVML_EVENTS]
        if has_news or is_listing or readable != self._readable:
            self._readable = readable
            self._latest = tuple(self._readings())
        return self._latest

    def _readings(self) -> Iterator[Reading]:
        yield from self._xid_readings()
        for metric in (metrics.NVSWITCH_INCIDENTS, metrics.NIC_INCIDENTS, metrics.HOST_INCIDENTS):
            for labels, count in self._incidents.counts_of(metric):
                yield Reading(metric, labels, count.number)
        for name in self._readable:
            yield Reading(metrics.LOG_READ, (name,), self._num_read[name])
            if name in self._logs:
                yield Reading(metrics.LOG_LOST, (name,), self._logs[name].lost)
                yield Reading(metrics.LOG_UNKNOWN, (name,), self._logs[name].unknown)

    def _xid_readings(self) -> Iterator[Reading]:
        counts = dict(self._incidents.counts_of(metrics.GPU_XID_INCIDENTS))
        for labels, count in counts.items():
            yield Reading(metrics.GPU_XID_INCIDENTS, labels, count.number)
            if count.last_wall_seconds is not None:
                yield Reading(metrics.GPU_XID_LAST, labels, count.last_wall_seconds)
        # at 0 from the start: increase() misses the first event of a series that begins with it
        for address in self._gpus:
            for each in PRECREATED_XIDS:
                labels = (address, "", str(each))
                if labels not in counts:
                    yield Reading(metrics.GPU_XID_INCIDENTS, labels, 0)
        for number in sorted({labels[2] for labels in counts}):
            if xid := XID_TABLE.get(number):
                info = (number, xid.kind, xid.severity, xid.remedy)
                yield Reading(metrics.GPU_XID_INFO, info, 1)

    def _ingest(self, name: str, log: Log) -> None:
        """Counts the new messages of a log; logs once that it cannot be read."""
        messages: list[Message] = []
        try:
            messages.extend(log.read())
        except OSError as error:
            # only nodes with NVSwitches have a fabric manager
            is_optional = name == "fabric_manager" and isinstance(error, FileNotFoundError)
            if name not in self._unreadable and not is_optional:
                _log.warning("log=%s path=%s state=%s", name, self._paths[name], error.strerror)
            self._unreadable.add(name)
        else:
            self._unreadable.discard(name)
        # Of a log that breaks off while it is read what came before counts.
        self._num_read[name] += len(messages)
        self._incidents.ingest(name, messages)
        self._note_unknown(name, log)

    def _note_unknown(self, name: str, log: Log) -> None:
        """Logs once that less than a tenth of a source is understood."""
        num_lines = self._num_read[name]
        if log.unknown > max(_FEW_LINES, 0.9 * num_lines) and name not in self._strange:
            self._strange.add(name)
            _log.warning(
                "log=%s path=%s: %d of %d lines were not understood, so that its silence says"
                " nothing; the first: %r", name, self._paths[name], log.unknown, num_lines,
                log.first_unknown,
            )  # fmt: skip

    def _restore(self, state: dict[str, Any]) -> dict[str, Log]:
        positions: dict[str, dict[str, int]] = {}
        lost, unknown = (dict.fromkeys(self._paths, 0) for _ in range(2))
        try:
            if state:
                self._incidents.restore(state)
                read = self._num_read
                for counts, key in ((read, "read"), (lost, "lost"), (unknown, "unknown")):
                    counts |= {name: int(state[key].get(name, 0)) for name in counts}
                for name, position in state["positions"].items():
                    positions[name] = {str(key): int(value) for key, value in position.items()}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            _log.warning("the saved state is damaged, counting starts again: %r", error)
            self._incidents, positions = Incidents(), {}
        if state.get("boot_id") != self._boot_id:
            # the ring of a new boot numbers its records from 0 again
            self._incidents.forget_open()
            for position in positions.values():
                position.pop("sequence", None)
        logs = {name: open_log(path, positions.get(name, {})) for name, path in self._paths.items()}
        for name, log in logs.items():
            log.lost, log.unknown = lost[name], unknown[name]
        return logs

    def _save(self) -> None:
        state = self._incidents.as_json() | {
            "boot_id": self._boot_id,
            "read": self._num_read,
            "lost": {name: log.lost for name, log in self._logs.items()},
            "unknown": {name: log.unknown for name, log in self._logs.items()},
            "positions": {name: log.position for name, log in self._logs.items()},
        }
        self._state.save(state)
