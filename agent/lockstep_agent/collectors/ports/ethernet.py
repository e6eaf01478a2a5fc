"""The Ethernet ports of the node, by their drivers' counters: pauses, discards, cable errors."""

from collections.abc import Iterator
from pathlib import Path

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.ports import ethtool_names
from lockstep_agent.ports.ethtool_names import first_value
from lockstep_agent.sources.ethtool import open_ethtool
from lockstep_agent.sources.interfaces import BYTES_PER_MEGABIT, list_interfaces
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_catalogue import fabric

_ALL = "all"


class Ethernet:
    """Queries the driver of each port, or the recording below ``sysfs``."""

    name = "ethernet"
    tier = Tier.TEN_SECONDS

    def __init__(self, sysfs: str) -> None:
        self._sysfs, self._files = sysfs, OpenFiles(max_open=0)
        self._ethtool = open_ethtool(Path(sysfs))
        self._paused: set[tuple[str, str, str]] = set()

    def collect(self) -> Iterator[Reading]:
        """Speed and counters of each port; a counter that a driver lacks is left out."""
        for port in list_interfaces(self._sysfs, self._files):
            if port.is_shadow or port.is_virtual:
                continue
            megabits = self._ethtool.fastest_megabits(port.name) or None
            yield from present(fabric.NET_SPEED_MAX, (port.name,), megabits, BYTES_PER_MEGABIT)
            counters = self._ethtool.counters(port.name)
            for counter in ethtool_names.PLAIN:
                value = first_value(counters, counter.names)
                labels = (port.name, *counter.extra_labels)
                yield from present(counter.metric, labels, value)
            yield from self._pauses(port.name, counters)
            yield from _durations(port.name, counters)

    def _pauses(self, device: str, counters: dict[str, int]) -> Iterator[Reading]:
        for direction, names_by_priority in ethtool_names.PAUSES.items():
            by_priority = {
                priority: first_value(counters, names)
                for priority, names in names_by_priority.items()
            }
            of_all = first_value(counters, ethtool_names.GLOBAL_PAUSES[direction])
            counts = [count for count in (of_all, *by_priority.values()) if count is not None]
            if counts:
                yield Reading(fabric.NET_PAUSES, (device, direction, _ALL), sum(counts))
            # only priorities that were ever paused, seldom two of eight, so that series stay few
            for priority, count in by_priority.items():
                labels = (device, direction, priority)
                if count is not None and (count or labels in self._paused):
                    self._paused.add(labels)
                    yield Reading(fabric.NET_PAUSES, labels, count)


def _durations(device: str, counters: dict[str, int]) -> Iterator[Reading]:
    for direction, names_by_priority in ethtool_names.DURATIONS.items():
        all_names = (*names_by_priority.values(), ethtool_names.GLOBAL_DURATIONS[direction])
        values = [first_value(counters, names) for names in all_names]
        durations = [duration for duration in values if duration is not None]
        if durations:
            seconds = sum(durations) * ethtool_names.SECONDS_PER_DURATION
            yield Reading(fabric.NET_PAUSE_SECONDS, (device, direction), seconds)
