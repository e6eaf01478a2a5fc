"""The network ports of the node, from /sys/class/net; a file that does not tell is left out."""

from collections.abc import Iterator
from pathlib import Path

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.sysfs import read_count, read_text
from lockstep_catalogue import fabric

_BYTES_PER_SECOND_OF_ONE_MEGABIT = 125_000
_DIRECTIONS = {"receive": "rx", "transmit": "tx"}
_STATISTICS = {
    fabric.NET_BYTES: "bytes",
    fabric.NET_PACKETS: "packets",
    fabric.NET_ERRORS: "errors",
    fabric.NET_DROPPED: "dropped",
}


class Net:
    """Reads the ports that carry traffic between nodes.

    Those are the devices. Bonds would count their traffic twice, and of virtual pairs a container
    host has hundreds; only where there is no device, inside such a container, are they told.
    """

    name = "net"
    tier = Tier.EVERY_TICK

    def __init__(self, sysfs: Path) -> None:
        self._folder = sysfs / "class" / "net"

    def collect(self) -> Iterator[Reading]:
        """State, line rate and traffic of each port."""
        for port in self._ports():
            yield from _link(port)
            yield from _traffic(port)

    def _ports(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        found = sorted(
            path
            for path in self._folder.iterdir()
            if path.is_dir() and path.name != "lo" and path.name.isprintable()
        )
        return [path for path in found if (path / "device").exists()] or found


def _link(port: Path) -> Iterator[Reading]:
    labels = (port.name,)
    state = read_text(port / "operstate")
    if state and state != "unknown":
        yield Reading(fabric.NET_UP, labels, 1 if state == "up" else 0)
    if megabits := read_count(port / "speed"):
        yield Reading(fabric.NET_SPEED, labels, megabits * _BYTES_PER_SECOND_OF_ONE_MEGABIT)
    changes = read_count(port / "carrier_changes")
    if changes is not None:
        yield Reading(fabric.NET_CARRIER_CHANGES, labels, changes)


def _traffic(port: Path) -> Iterator[Reading]:
    for metric, what in _STATISTICS.items():
        for direction, prefix in _DIRECTIONS.items():
            count = read_count(port / "statistics" / f"{prefix}_{what}")
            if count is not None:
                yield Reading(metric, (port.name, direction), count)
