"""The network ports of the node, from /sys/class/net; a file that does not tell is left out."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.due import Due
from lockstep_agent.sources.interfaces import Interface, list_bonds, list_interfaces
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_catalogue import Metric, fabric

_BYTES_PER_SECOND_OF_ONE_MEGABIT = 125_000
_LIST_SECONDS = 10.0
_FASTEST_MEGABITS = 10_000_000  # drivers write 4294967295 for a speed that they do not know
_DIRECTIONS = {"receive": "rx", "transmit": "tx"}
_STATISTICS = {
    fabric.NET_BYTES: "bytes",
    fabric.NET_PACKETS: "packets",
    fabric.NET_ERRORS: "errors",
    fabric.NET_DROPPED: "dropped",
}
_Counters = tuple[tuple[str, Metric, tuple[str, ...]], ...]


class Net:
    """Reads the ports that carry traffic between nodes, and the bonds made of them.

    Args:
        sysfs: where /sys is.
    """

    name = "net"
    tier = Tier.EVERY_TICK

    def __init__(self, sysfs: str) -> None:
        self._sysfs, self._files, self._list = sysfs, OpenFiles(), Due(_LIST_SECONDS)
        self._ports: tuple[tuple[Interface, _Counters], ...] = ()
        self._bonds: dict[str, tuple[str, ...]] = {}

    def collect(self) -> Iterator[Reading]:
        """State, line rate and traffic of each port; members of each bond."""
        if self._list.is_due():
            listing = OpenFiles(most=0)
            found = list_interfaces(self._sysfs, listing)
            self._ports = tuple((port, _counters(port)) for port in found)
            self._bonds = list_bonds(self._sysfs, listing)
        for port, counters in self._ports:
            if self._files.is_there(port.folder):
                yield from self._link(port)
                for path, metric, labels in counters:
                    count = self._files.count(path)
                    if count is not None:
                        yield Reading(metric, labels, count)
        yield from self._members()

    def _link(self, port: Interface) -> Iterator[Reading]:
        labels = (port.name,)
        state = self._files.text(f"{port.folder}/operstate")
        if state and state != "unknown" and not port.is_shadow:
            yield Reading(fabric.NET_UP, labels, 1 if state == "up" else 0)
        megabits = self._files.count(f"{port.folder}/speed")
        if megabits and megabits <= _FASTEST_MEGABITS and not port.is_shadow:
            speed = megabits * _BYTES_PER_SECOND_OF_ONE_MEGABIT
            yield Reading(fabric.NET_SPEED, labels, speed)
        changes = self._files.count(f"{port.folder}/carrier_changes")
        if changes is not None:
            yield Reading(fabric.NET_CARRIER_CHANGES, labels, changes)
        virtual = self._files.count(f"{port.folder}/device/sriov_numvfs")
        if virtual is not None and not port.is_shadow:
            yield Reading(fabric.NET_VIRTUAL_FUNCTIONS, labels, virtual)

    def _members(self) -> Iterator[Reading]:
        for bond, members in self._bonds.items():
            states = [self._files.text(f"{member}/operstate") for member in members]
            yield Reading(fabric.BOND_MEMBERS, (bond,), len(members))
            yield Reading(fabric.BOND_MEMBERS_UP, (bond,), states.count("up"))


def _counters(port: Interface) -> _Counters:
    if port.is_shadow:
        return ()
    return tuple(
        (f"{port.folder}/statistics/{prefix}_{what}", metric, (port.name, direction))
        for metric, what in _STATISTICS.items()
        for direction, prefix in _DIRECTIONS.items()
    )
