"""The node: pressure, steal and memory of the host, and the identity of the agent."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.sysfs import OpenFiles, read_text, stalled_seconds
from lockstep_catalogue import agent, host
from lockstep_catalogue.labels import RESOURCE
from lockstep_records.distribution import installed_version

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


class AgentInfo:
    """Reports what the agent is and what it costs."""

    name = "agent_info"
    tier = Tier.TEN_SECONDS

    def __init__(self, cluster: str, node: str, procfs: Path) -> None:
        self._identity = (cluster, node, installed_version())
        self._statm = procfs / "self" / "statm"

    def collect(self) -> Iterator[Reading]:
        """Identity, resident memory and processor time of this process."""
        yield Reading(agent.AGENT_INFO, self._identity, 1)
        pages = (read_text(self._statm) or "").split()
        if pages:
            # the second field of statm is the resident set, in memory pages
            yield Reading(agent.AGENT_MEMORY, (), int(pages[1]) * os.sysconf("SC_PAGE_SIZE"))
        times = os.times()
        yield Reading(agent.AGENT_CPU, (), times.user + times.system)
