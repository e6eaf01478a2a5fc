"""State and rate of an RDMA port, as the kernel writes them."""

import re
from dataclasses import dataclass

from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.rdma import RdmaPort
from lockstep_agent.sources.sysfs import link_target_name, list_names
from lockstep_catalogue.labels import PHYSICAL_STATE, PORT_STATE

ACTIVE = 4
LINK_UP = 5
_STATE = re.compile(r"([0-7])(?::|$)")
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec(?: \(([0-9]{1,2})X\b.*)?")
_BYTES_PER_GIGABIT = 125_000_000
_EFA = "efa"


@dataclass(frozen=True, slots=True)
class PortState:
    """State of a port; None for what the kernel does not report.

    Attributes:
        state: number of the logical state, 4 for active.
        physical_state: number of the physical state, 5 for link up.
        bytes_per_second: rate of the link in one direction.
        lanes: number of lanes that the link runs on.
    """

    state: int | None
    physical_state: int | None
    bytes_per_second: float | None
    lanes: int | None


def read_state(files: OpenFiles, port: RdmaPort) -> PortState:
    """The state of a port at this moment."""
    bytes_per_second, lanes = parse_rate(files.text(f"{port.folder}/rate") or "")
    return PortState(
        _parse_state(files.text(f"{port.folder}/state"), len(PORT_STATE.values)),
        _parse_state(files.text(f"{port.folder}/phys_state"), len(PHYSICAL_STATE.values)),
        bytes_per_second,
        lanes,
    )


def parse_rate(text: str) -> tuple[float | None, int | None]:
    """Bytes per second and lanes out of a text such as ``400 Gb/sec (4X NDR)``."""
    match = _RATE.match(text)
    if not match:
        return None, None
    bytes_per_second = float(match[1]) * _BYTES_PER_GIGABIT
    lanes = int(match[2]) if match[2] else None
    return bytes_per_second or None, lanes or None


def link_layer(files: OpenFiles, port: RdmaPort) -> str:
    """The link layer of the port, one of the label's values."""
    # EFA's ports say Unspecified
    layer = (files.text(f"{port.folder}/link_layer") or "").lower()
    return layer if layer in {"infiniband", "ethernet"} else "unspecified"


def interface_of(files: OpenFiles, port: RdmaPort) -> str:
    """Name of the network interface of the same port; empty without one."""
    interface = files.text(f"{port.folder}/gid_attrs/ndevs/0")
    if interface and interface.isprintable():
        return interface
    names = list_names(f"{port.adapter}/device/net")
    for name in names:
        # dev_port counts from 0, the folders of ports from 1
        dev_port = files.count(f"{port.adapter}/device/net/{name}/dev_port")
        if dev_port is not None and str(dev_port + 1) == port.number:
            return name
    return names[0] if len(names) == 1 else ""


def pci_address(port: RdmaPort) -> str:
    """PCI address of the adapter; empty where /sys does not name it."""
    return link_target_name(f"{port.adapter}/device")


def has_true_state(port: RdmaPort) -> bool:
    """Whether the port's state is measured; the driver of EFA hard-codes it as active."""
    return port.driver != _EFA and not port.device.startswith(_EFA)


def _parse_state(text: str | None, num_states: int) -> int | None:
    match = _STATE.match(text or "")
    return int(match[1]) if match and int(match[1]) < num_states else None
