"""The network interfaces of the node that are ports, from /sys/class/net."""

import os
from dataclasses import dataclass

from lockstep_agent.sources.sysfs import OpenFiles, list_names

_MAX_PORTS = 64
_MAX_BONDS = 16
_IP_OVER_INFINIBAND = 32  # ARPHRD_INFINIBAND
_FASTEST_MEGABITS = 10_000_000  # drivers write 4294967295 for an unknown speed
BYTES_PER_MEGABIT = 125_000


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface.

    Attributes:
        is_shadow: it carries IP over an InfiniBand port, which counts this traffic itself.
        is_virtual: it has no adapter; the only kind inside a container.
    """

    name: str
    folder: str
    is_shadow: bool = False
    is_virtual: bool = False


def list_interfaces(sysfs: str, files: OpenFiles) -> tuple[Interface, ...]:
    """The interfaces that are ports, at most 64.

    Those are the adapters' own; where there are none, as inside a container, the virtual ones.
    """
    folder = f"{sysfs}/class/net"
    paths = [f"{folder}/{name}" for name in list_names(folder) if name != "lo"]
    paths = [path for path in paths if os.path.isdir(path)]  # noqa: PTH112  # text in, text out
    # bonds, bridges, tunnels and virtual functions would count the traffic of their port twice, and
    # a container host has hundreds of virtual pairs
    adapters = [path for path in paths if os.path.lexists(f"{path}/device")]
    ports = [path for path in adapters if not os.path.lexists(f"{path}/device/physfn")]
    selected = (ports or adapters or paths)[:_MAX_PORTS]
    return tuple(
        Interface(
            path.rpartition("/")[2],
            path,
            is_shadow=files.count(f"{path}/type") == _IP_OVER_INFINIBAND,
            is_virtual=not adapters,
        )
        for path in selected
    )


def link_rate(port: Interface, files: OpenFiles) -> int | None:
    """Bytes a second of the link of a port in one direction; None where its driver knows none."""
    megabits = files.count(f"{port.folder}/speed")
    if not megabits or megabits > _FASTEST_MEGABITS:
        return None
    return megabits * BYTES_PER_MEGABIT


def list_bonds(sysfs: str, files: OpenFiles) -> dict[str, tuple[str, ...]]:
    """The folders of the members of each bond by its name, at most 16 bonds."""
    folder = f"{sysfs}/class/net"
    slaves = {name: files.text(f"{folder}/{name}/bonding/slaves") for name in list_names(folder)}
    bonds = {name: members for name, members in slaves.items() if members is not None}
    return {
        name: tuple(f"{folder}/{member}" for member in members.split() if "/" not in member)
        for name, members in list(bonds.items())[:_MAX_BONDS]
    }
