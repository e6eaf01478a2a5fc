"""The agent itself: identity, memory and processor time."""

import os
from collections.abc import Iterator
from pathlib import Path

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.sysfs import read_text
from lockstep_catalogue import agent
from lockstep_records.distribution import installed_version


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
