"""The Ethernet ports of the node by their drivers' own counters: pauses, discards, bad cables."""

from collections.abc import Iterator
from pathlib import Path

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.ports.ethtool_names import (
    DURATIONS,
    GLOBAL_DURATIONS,
    GLOBAL_PAUSES,
    PAUSES,
    PLAIN,
    SECONDS_OF_ONE_DURATION,
    first,
)
from lockstep_agent.sources.ethtool import Ethtool, open_ethtool
from lockstep_agent.sources.interfaces import list_interfaces
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_catalogue import fabric

_BYTES_PER_SECOND_OF_ONE_MEGABIT = 125_000
_ALL = "all"


class Ethernet:
    """Asks the driver of each port.

    Args:
        sysfs: where /sys is.
        ethtool: what to ask; by default the kernel, or the recording below ``sysfs``.
    """

    name = "ethernet"
    tier = Tier.TEN_SECONDS

    def __init__(self, sysfs: str, ethtool: Ethtool | None = None) -> None:
        self._sysfs, self._files = sysfs, OpenFiles(max_open=0)
        self._ethtool = ethtool or open_ethtool(Path(sysfs))
        self._paused: set[tuple[str, str, str]] = set()

    def collect(self) -> Iterator[Reading]:
        """What the drivers tell; a counter that a driver does not know is left out."""
        for port in list_interfaces(self._sysfs, self._files):
            if port.is_shadow or port.is_virtual:
                continue
            if megabits := self._ethtool.fastest_megabits(port.name):
                speed = megabits * _BYTES_PER_SECOND_OF_ONE_MEGABIT
                yield Reading(fabric.NET_SPEED_MAX, (port.name,), speed)
            counters = self._ethtool.counters(port.name)
            for named in PLAIN:
                value = first(counters, named.names)
                if value is not None:
                    yield Reading(named.metric, (port.name, *named.more), value * named.factor)
            yield from self._pauses(port.name, counters)
            yield from _durations(port.name, counters)

    def _pauses(self, device: str, counters: dict[str, int]) -> Iterator[Reading]:
        """All pauses of a direction, and those priorities that were ever paused: seldom two."""
        for way, names in PAUSES.items():
            told = {p: first(counters, of) for p, of in names.items()}
            frames = [first(counters, GLOBAL_PAUSES[way]), *told.values()]
            known = [count for count in frames if count is not None]
            if known:
                yield Reading(fabric.NET_PAUSES, (device, way, _ALL), sum(known))
            for priority, count in told.items():
                if count is not None and (count or (device, way, priority) in self._paused):
                    self._paused.add((device, way, priority))
                    yield Reading(fabric.NET_PAUSES, (device, way, priority), count)


def _durations(device: str, counters: dict[str, int]) -> Iterator[Reading]:
    for way, names in DURATIONS.items():
        durations = [first(counters, of) for of in (*names.values(), GLOBAL_DURATIONS[way])]
        known = [duration for duration in durations if duration is not None]
        if known:
            seconds = sum(known) * SECONDS_OF_ONE_DURATION
            yield Reading(fabric.NET_PAUSE_SECONDS, (device, way), seconds)
