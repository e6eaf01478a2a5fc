"""The network ports of the node, from /sys/class/net: state, speed, traffic and bonds."""

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.sources.due import Due
from lockstep_agent.sources.interfaces import Interface, link_rate, list_bonds, list_interfaces
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_catalogue import Metric, fabric

_LIST_SECONDS = 10.0
_DIRECTIONS = {"receive": "rx", "transmit": "tx"}
_STATISTICS = {
    fabric.NET_BYTES: "bytes",
    fabric.NET_PACKETS: "packets",
    fabric.NET_ERRORS: "errors",
    fabric.NET_DROPPED: "dropped",
}
_Counters = tuple[tuple[str, Metric, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Port:
    """One port: its folder, its traffic counters, and the readings of its link."""

    folder: str
    counters: _Counters
    link: tuple[Reading, ...]


class Net:
    """Reads the traffic of the ports each tick, their state and bonds every ten seconds."""

    name = "net"
    tier = Tier.EVERY_TICK

    def __init__(self, sysfs: str) -> None:
        self._sysfs, self._files, self._port_list = sysfs, OpenFiles(), Due(_LIST_SECONDS)
        self._ports: tuple[_Port, ...] = ()
        self._bonds: tuple[Reading, ...] = ()

    def collect(self) -> Iterator[Reading]:
        """State, rate and traffic of each port, members of each bond, without unreadable files."""
        if self._port_list.is_due():
            files = OpenFiles(max_open=0)  # read too seldom to stay open
            self._ports = tuple(
                _Port(port.folder, _counters(port), tuple(_link(port, files)))
                for port in list_interfaces(self._sysfs, files)
            )
            self._bonds = tuple(_members(list_bonds(self._sysfs, files), files))
        for port in self._ports:
            if self._files.is_present(port.folder):
                yield from port.link
                for path, metric, labels in port.counters:
                    yield from present(metric, labels, self._files.count(path))
        yield from self._bonds


def _link(port: Interface, files: OpenFiles) -> Iterator[Reading]:
    labels = (port.name,)
    state = files.text(f"{port.folder}/operstate")
    if state and state != "unknown" and not port.is_shadow:
        yield Reading(fabric.NET_UP, labels, 1 if state == "up" else 0)
    # in the folder itself, not among the statistics
    changes = files.count(f"{port.folder}/carrier_changes")
    yield from present(fabric.NET_CARRIER_CHANGES, labels, changes)
    if not port.is_shadow:
        yield from present(fabric.NET_SPEED, labels, link_rate(port, files))


def _members(bonds: dict[str, tuple[str, ...]], files: OpenFiles) -> Iterator[Reading]:
    for bond, members in bonds.items():
        states = [files.text(f"{member}/operstate") for member in members]
        yield Reading(fabric.BOND_MEMBERS, (bond,), len(members))
        yield Reading(fabric.BOND_MEMBERS_UP, (bond,), states.count("up"))


def _counters(port: Interface) -> _Counters:
    if port.is_shadow:
        return ()
    return tuple(
        (f"{port.folder}/statistics/{prefix}_{statistic}", metric, (port.name, direction))
        for metric, statistic in _STATISTICS.items()
        for direction, prefix in _DIRECTIONS.items()
    )
