"""The traffic of the node's RDMA ports, each tick."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.ports.counters import TRAFFIC
from lockstep_agent.sources.due import Due
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.rdma import RdmaPort, RdmaPorts, counter_files
from lockstep_catalogue import Metric

_LIST_SECONDS = 10.0
_Counters = tuple[tuple[str, Metric, tuple[str, ...], int], ...]
"""The counters of one port, each as path, metric, label values and factor."""


class Infiniband:
    """Reads the counters that change fast."""

    name = "infiniband"
    # only traffic: each read of a counter can cost a command to the adapter's firmware
    tier = Tier.EVERY_TICK

    def __init__(self, sysfs: str) -> None:
        self._ports, self._files = RdmaPorts(sysfs, is_logging=True), OpenFiles()
        self._port_list = Due(_LIST_SECONDS)
        self._counters: dict[str, _Counters] = {}

    def collect(self) -> Iterator[Reading]:
        """Traffic of each port; an unreadable counter is left out."""
        if self._port_list.is_due():
            self._counters = {port.folder: _find_counters(port) for port in self._ports.list()}
        for folder, counters in self._counters.items():
            if self._files.is_present(folder):
                for path, metric, labels, factor in counters:
                    yield from present(metric, labels, self._files.count(path), factor)


def _find_counters(port: RdmaPort) -> _Counters:
    paths = counter_files(port)
    return tuple(
        (
            f"{port.folder}/{counter.path}",
            counter.metric,
            (*port.labels, *counter.extra_labels),
            counter.factor,
        )
        for counter in TRAFFIC
        if counter.path in paths
    )
