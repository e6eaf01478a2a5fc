"""The logs of the node: what they complain of, counted over restarts of the agent."""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.kernel.incidents import BY_EVENT, Incidents
from lockstep_agent.kernel.patterns import understand
from lockstep_agent.kernel.xid_correlator import Witness
from lockstep_agent.recent_events import RecentEvents
from lockstep_agent.sources.due import Due
from lockstep_agent.sources.logs import Log, open_log
from lockstep_agent.sources.pci_tree import list_gpus
from lockstep_agent.sources.sysfs import read_text
from lockstep_agent.sources.xid_event import XidEvent
from lockstep_agent.state_file import StateFile
from lockstep_catalogue import events as metrics
from lockstep_catalogue.xids import TOLD_FROM_THE_START, XID_BY_NUMBER

_log = logging.getLogger(__name__)
_LIST_SECONDS = 10.0


class KernelLog:
    """Reads the kernel log and the fabric manager's, with the driver's events as a second witness.

    Counters and how far the logs were read are kept in one file that is replaced as a whole before
    anything is served: after a restart nothing is counted twice, nothing is missed, nothing falls.

    Args:
        paths: of the logs, by the value of the label ``log``.
        boot: file that tells the id of this start of the node.
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
        self._paths, self._boot, self._sysfs, self._state = paths, boot, sysfs, state
        self._incidents, self._witness = Incidents(), Witness(clock)
        self._take_xids, self.recent = take_xids, recent or RecentEvents()
        self._read = dict.fromkeys((*paths, BY_EVENT), 0)
        self._lost = dict.fromkeys(paths, 0)
        self._boot_id = read_text(boot) or ""
        self._silent: set[str] = set()
        self._logs: dict[str, Log] = self._take_up(state.load())
        self._list = Due(_LIST_SECONDS)
        self._gpus: tuple[str, ...] = ()
        self._latest: tuple[Reading, ...] = ()
        self._tellers: list[str] = []
        self._serve_recent()

    def collect(self) -> tuple[Reading, ...]:
        """Counters of incidents, and what the logs lost."""
        before, listed = sum(self._read.values()), self._list.is_due()
        if listed:
            self._gpus = tuple(list_gpus(self._sysfs))
        for name, log in self._logs.items():
            self._follow(name, log)
        events = self._take_xids()
        self._read[BY_EVENT] += self._witness.hear(events or (), self._incidents)
        anew = sum(self._read.values()) != before
        if anew:
            self._save()
            self._serve_recent()
        tellers = [name for name in self._logs if name not in self._silent]
        tellers += [] if events is None else [BY_EVENT]
        if anew or listed or tellers != self._tellers:
            self._tellers = tellers
            self._latest = tuple(self._told())
        return self._latest

    def _told(self) -> Iterator[Reading]:
        yield from self._of_gpus()
        for metric in (metrics.NVSWITCH_INCIDENTS, metrics.NIC_INCIDENTS, metrics.HOST_INCIDENTS):
            for labels, count in self._incidents.told(metric):
                yield Reading(metric, labels, count.number)
        for name in self._tellers:
            yield Reading(metrics.LOG_READ, (name,), self._read[name])
            if name in self._logs:
                lost = self._lost[name] + self._logs[name].lost
                yield Reading(metrics.LOG_LOST, (name,), lost)

    def _of_gpus(self) -> Iterator[Reading]:
        told = dict(self._incidents.told(metrics.GPU_XID_INCIDENTS))
        for labels, count in told.items():
            yield Reading(metrics.GPU_XID_INCIDENTS, labels, count.number)
            if count.last_wall_seconds is not None:
                yield Reading(metrics.GPU_XID_LAST, labels, count.last_wall_seconds)
        for address in self._gpus:
            for number in TOLD_FROM_THE_START:
                labels = (address, "", str(number))
                if labels not in told:
                    yield Reading(metrics.GPU_XID_INCIDENTS, labels, 0)
        for number in sorted({int(labels[2]) for labels in told}):
            if known := XID_BY_NUMBER.get(number):
                meaning = (str(number), known.kind, known.severity, known.remedy)
                yield Reading(metrics.GPU_XID_INFO, meaning, 1)

    def _follow(self, name: str, log: Log) -> None:
        """Takes in what is new; a log that cannot be read is said once and left out."""
        try:
            for message in log.read():
                self._read[name] += 1
                finding = understand(name, message.text)
                if finding:
                    self._incidents.add(name, finding, message)
        except OSError as error:
            optional = name == "fabric_manager" and isinstance(error, FileNotFoundError)
            if name not in self._silent and not optional:
                _log.warning("log=%s path=%s state=%s", name, self._paths[name], error.strerror)
            self._silent.add(name)
        else:
            self._silent.discard(name)

    def _take_up(self, told: dict[str, Any]) -> dict[str, Log]:
        positions: dict[str, dict[str, int]] = {}
        try:
            if told:
                self._incidents.take_up(told)
                self._read |= {name: int(told["read"].get(name, 0)) for name in self._read}
                self._lost |= {name: int(told["lost"].get(name, 0)) for name in self._lost}
                for name, position in told["positions"].items():
                    positions[name] = {str(key): int(value) for key, value in position.items()}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            _log.warning("the kept state is damaged, counting begins anew: %r", error)
            self._incidents, positions = Incidents(), {}
        if told.get("boot_id") != self._boot_id:
            self._incidents.forget_open()
            for position in positions.values():
                position.pop("sequence", None)
        return {name: open_log(path, positions.get(name, {})) for name, path in self._paths.items()}

    def _save(self) -> None:
        told = self._incidents.as_json() | {
            "boot_id": self._boot_id,
            "read": self._read,
            "lost": {name: self._lost[name] + log.lost for name, log in self._logs.items()},
            "positions": {name: log.position for name, log in self._logs.items()},
        }
        self._state.save(told)

    def _serve_recent(self) -> None:
        self.recent.replace(self._incidents.recent)
