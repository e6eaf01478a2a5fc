"""The RDMA ports of the node, each tick: what they carry."""

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.ports.counters import TRAFFIC
from lockstep_agent.sources.due import Due
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.rdma import RdmaPort, RdmaPorts, counter_files
from lockstep_catalogue import Metric

_LIST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Known:
    folder: str
    counters: tuple[tuple[str, Metric, tuple[str, ...], int], ...]


class Infiniband:
    """Reads what changes fast; a read of a counter can cost a command to the adapter's firmware.

    Args:
        sysfs: where /sys is.
    """

    name = "infiniband"
    tier = Tier.EVERY_TICK

    def __init__(self, sysfs: str) -> None:
        self._ports, self._files, self._list = (
            RdmaPorts(sysfs, aloud=True),
            OpenFiles(),
            Due(_LIST_SECONDS),
        )
        self._known: tuple[_Known, ...] = ()

    def collect(self) -> Iterator[Reading]:
        """Traffic of each port; what a file does not tell is left out."""
        if self._list.is_due():
            self._known = tuple(_know(port) for port in self._ports.list())
        count = self._files.count
        for known in self._known:
            if self._files.is_present(known.folder):
                for path, metric, labels, factor in known.counters:
                    value = count(path)
                    if value is not None:
                        yield Reading(metric, labels, value * factor)


def _know(port: RdmaPort) -> _Known:
    there = counter_files(port)
    counters = tuple(
        (f"{port.folder}/{at.path}", at.metric, (*port.labels, *at.more), at.factor)
        for at in TRAFFIC
        if at.path in there
    )
    return _Known(port.folder, counters)
