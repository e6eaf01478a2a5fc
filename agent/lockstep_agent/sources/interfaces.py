"""The network interfaces of the node that stand for ports, from /sys/class/net."""

import os
from dataclasses import dataclass

from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.sysfs import list_names

_MOST_PORTS = 64
_IP_OVER_INFINIBAND = 32


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface.

    Attributes:
        is_shadow: it carries IP over an InfiniBand port, which tells its traffic itself.
        is_virtual: it has no adapter; the only kind there is inside a container.
    """

    name: str
    folder: str
    is_shadow: bool = False
    is_virtual: bool = False


def list_interfaces(sysfs: str, files: OpenFiles) -> tuple[Interface, ...]:
    """The interfaces that stand for ports, at most 64.

    Those are the adapters'. Bonds, bridges and tunnels would count their traffic twice, so would
    the virtual functions of a port, and of virtual pairs a container host has hundreds; only where
    there is nothing else, inside such a container, are they told.
    """
    folder = f"{sysfs}/class/net"
    found = [f"{folder}/{name}" for name in list_names(folder) if name != "lo"]
    found = [path for path in found if os.path.isdir(path)]  # noqa: PTH112  # text in, text out
    adapters = [path for path in found if os.path.lexists(f"{path}/device")]
    ports = [path for path in adapters if not os.path.lexists(f"{path}/device/physfn")]
    chosen = (ports or adapters or found)[:_MOST_PORTS]
    return tuple(
        Interface(
            path.rpartition("/")[2],
            path,
            is_shadow=files.count(f"{path}/type") == _IP_OVER_INFINIBAND,
            is_virtual=not adapters,
        )
        for path in chosen
    )


def list_bonds(sysfs: str, files: OpenFiles) -> dict[str, tuple[str, ...]]:
    """The folders of the members of each bond, by its name, at most 16 bonds."""
    folder = f"{sysfs}/class/net"
    told = {name: files.text(f"{folder}/{name}/bonding/slaves") for name in list_names(folder)}
    bonds = {name: members for name, members in told.items() if members is not None}
    return {
        name: tuple(f"{folder}/{member}" for member in members.split() if "/" not in member)
        for name, members in list(bonds.items())[:16]
    }
