"""State and rate of an RDMA port, as the kernel writes them."""

import re
from dataclasses import dataclass

from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.rdma import RdmaPort
from lockstep_agent.sources.sysfs import link_target_name, list_names
from lockstep_catalogue.fabric_labels import PHYSICAL_STATE, PORT_STATE

ACTIVE = 4
LINK_UP = 5
_STATE = re.compile(r"([0-7])(?::|$)")
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec(?: \(([0-9]{1,2})X\b.*)?")
_BYTES_PER_SECOND_OF_ONE_GIGABIT = 125_000_000
_EFA = "efa"


@dataclass(frozen=True, slots=True)
class PortState:
    """What a port says of itself; None where it does not.

    Attributes:
        state: number of the logical state, 4 for active.
        physical: number of the physical state, 5 for link up.
        rate: in bytes per second and direction.
        lanes: how many the link runs on.
    """

    state: int | None
    physical: int | None
    rate: float | None
    lanes: int | None


def read_state(files: OpenFiles, port: RdmaPort) -> PortState:
    """The state of a port at this moment."""
    rate, lanes = parse_rate(files.text(f"{port.folder}/rate") or "")
    return PortState(
        _number(files.text(f"{port.folder}/state"), len(PORT_STATE.values)),
        _number(files.text(f"{port.folder}/phys_state"), len(PHYSICAL_STATE.values)),
        rate,
        lanes,
    )


def parse_rate(text: str) -> tuple[float | None, int | None]:
    """Bytes per second and lanes out of such as ``400 Gb/sec (4X NDR)``."""
    found = _RATE.match(text)
    if not found:
        return None, None
    rate = float(found[1]) * _BYTES_PER_SECOND_OF_ONE_GIGABIT
    lanes = int(found[2]) if found[2] else None
    return rate or None, lanes or None


def link_layer(files: OpenFiles, port: RdmaPort) -> str:
    """What the port speaks, one of the label's values."""
    told = (files.text(f"{port.folder}/link_layer") or "").lower()
    return told if told in {"infiniband", "ethernet"} else "unspecified"


def interface_of(files: OpenFiles, port: RdmaPort) -> str:
    """The network interface of the same port; empty where none is to be found."""
    told = files.text(f"{port.folder}/gid_attrs/ndevs/0")
    if told and told.isprintable():
        return told
    beside = list_names(f"{port.adapter}/device/net")
    for name in beside:
        at = files.count(f"{port.adapter}/device/net/{name}/dev_port")
        if at is not None and str(at + 1) == port.number:
            return name
    return beside[0] if len(beside) == 1 else ""


def pci_address(port: RdmaPort) -> str:
    """PCI address of the adapter; empty where the tree does not tell."""
    return link_target_name(f"{port.adapter}/device")


def tells_its_state(port: RdmaPort) -> bool:
    """Whether the state says something: the driver of EFA always answers active."""
    return port.driver != _EFA and not port.device.startswith(_EFA)


def _number(text: str | None, below: int) -> int | None:
    found = _STATE.match(text or "")
    return int(found[1]) if found and int(found[1]) < below else None
