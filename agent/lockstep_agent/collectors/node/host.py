"""The host: waiting time of its tasks, stolen processor time, available memory."""

import os
import re
from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.pressure import stalled_seconds
from lockstep_catalogue import host
from lockstep_catalogue.labels import RESOURCE

# the eighth number of the line cpu, in clock ticks; only virtual machines have any
_STEAL = re.compile(r"cpu +(?:[0-9]{1,20} ){7}([0-9]{1,20})")
_MEMORY = {
    host.MEMORY_TOTAL: re.compile(r"^MemTotal: +([0-9]{1,15}) kB$", re.MULTILINE),
    host.MEMORY_AVAILABLE: re.compile(r"^MemAvailable: +([0-9]{1,15}) kB$", re.MULTILINE),
}
_KIB = 1024
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Host:
    """Reads pressure, processor time and memory of the node; pressure needs Linux 4.20."""

    name = "host"
    tier = Tier.TEN_SECONDS

    def __init__(self, procfs: str) -> None:
        self._procfs, self._files = procfs, OpenFiles()

    def collect(self) -> Iterator[Reading]:
        """Counters since boot, and the current memory."""
        for resource in RESOURCE.values:
            text = self._files.text(f"{self._procfs}/pressure/{resource}")
            for pressure, seconds in stalled_seconds(text):
                yield Reading(host.PRESSURE_SECONDS, (resource, pressure), seconds)
        steal = _STEAL.match(self._files.text(f"{self._procfs}/stat") or "")
        if steal:
            yield Reading(host.STEAL_SECONDS, (), int(steal[1]) / _TICKS_PER_SECOND)
        text = self._files.text(f"{self._procfs}/meminfo") or ""
        for metric, line in _MEMORY.items():
            if match := line.search(text):
                yield Reading(metric, (), int(match[1]) * _KIB)
