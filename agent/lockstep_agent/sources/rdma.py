"""RDMA ports of the node: their counter files, state and rate."""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep_agent.sources.sysfs import OpenFiles, link_target_name, list_names
from lockstep_catalogue.labels import PHYSICAL_STATE, PORT_STATE

_log = logging.getLogger(__name__)
_MAX_PORTS = 64
_MANAGED = b"SW_MNG"  # in the VPD of the functions that only the fabric manager may use
_COUNTER_FOLDERS = ("counters", "counters_ext", "hw_counters")
ACTIVE = 4
_STATE = re.compile(r"([0-7])(?::|$)")
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec(?: \(([0-9]{1,2})X\b.*)?")
_BYTES_PER_GIGABIT = 125_000_000
_EFA = "efa"


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port of an adapter.

    Attributes:
        device: name of the adapter, such as ``mlx5_0``.
        number: name of the port's folder, from "1".
    """

    device: str
    number: str
    adapter: str
    folder: str

    @property
    def labels(self) -> tuple[str, str]:
        """The values of the labels ``device`` and ``port``."""
        return self.device, self.number

    @property
    def driver(self) -> str:
        """Name of the kernel driver; empty where /sys does not name it."""
        return link_target_name(f"{self.adapter}/device/driver")


def counter_files(port: RdmaPort) -> frozenset[str]:
    """The counter files of a port, by their path below its folder."""
    return frozenset(
        f"{folder}/{name}"
        for folder in _COUNTER_FOLDERS
        for name in list_names(f"{port.folder}/{folder}")
    )


class RdmaPorts:
    """Lists the ports, without the functions that only the fabric manager may touch.

    Args:
        is_logging: logs what is absent or skipped; one of several readers is enough.
    """

    def __init__(self, sysfs: str, *, is_logging: bool = False) -> None:
        self._folder = f"{sysfs}/class/infiniband"
        self._managed: dict[str, bool] = {}
        self._is_logging, self._is_absence_logged = is_logging, False

    def list(self) -> tuple[RdmaPort, ...]:
        """The ports of this moment, at most 64; logs their absence once."""
        ports = tuple(self._ports())[:_MAX_PORTS]
        if self._is_logging and not ports and not self._is_absence_logged:
            _log.info("collector=infiniband state=absent reason='no port in %s'", self._folder)
        self._is_absence_logged = not ports
        return ports

    def _ports(self) -> Iterator[RdmaPort]:
        devices = list_names(self._folder)
        self._managed = {
            name: is_managed for name, is_managed in self._managed.items() if name in devices
        }
        for device in devices:
            adapter = f"{self._folder}/{device}"
            # on boards with NVLink switches these functions refuse every read, and each refusal
            # writes a line to the kernel log (node_exporter issue 3434)
            if self._is_managed(device, adapter):
                continue
            for number in list_names(f"{adapter}/ports"):
                if number.isascii() and number.isdigit():
                    yield RdmaPort(device, number, adapter, f"{adapter}/ports/{number}")

    def _is_managed(self, device: str, adapter: str) -> bool:
        if device not in self._managed:
            vital_data = OpenFiles(max_open=0).read(f"{adapter}/device/vpd")
            self._managed[device] = _MANAGED in (vital_data or b"")
            if self._is_logging and self._managed[device]:
                _log.info("device=%s state=skipped reason='for the fabric manager'", device)
        return self._managed[device]


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
