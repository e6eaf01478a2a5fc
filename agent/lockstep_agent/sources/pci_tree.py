"""GPUs and network adapters on the PCI bus: address, bridges above, memory node and link."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from lockstep_agent.sources.sysfs import Due, OpenFiles, list_names

_NVIDIA = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controller; data centre boards are either
_NETWORK_CLASS = "0x02"
_MAX_ENDPOINTS = 64
_LIST_SECONDS = 60.0
_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}")
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) GT/s")
_GIGA = 1e9
_MAX_LANES = 32


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A GPU or a network adapter.

    Attributes:
        address: as /sys writes it, such as ``0000:9b:00.0``.
        kind: value of the label ``endpoint``: ``gpu`` or ``nic``.
        folder: real folder of the device in the tree.
        bridges: addresses of the bridges above the device, nearest first; empty where unknown.
        root: the host bridge; empty where unknown.
        name: RDMA device, else network interface, else empty.
        numa_node: None where the kernel reports none.
    """

    address: str
    kind: str
    folder: str
    bridges: tuple[str, ...]
    root: str
    name: str
    numa_node: int | None

    @property
    def upstream_folder(self) -> str | None:
        """Folder of the port at the other end of the device's link; None where unknown."""
        return self.folder.rpartition("/")[0] if self.bridges else None


class Endpoints:
    """Lists the GPUs and network adapters; scans for new ones once a minute."""

    def __init__(self, sysfs: str) -> None:
        self._sysfs, self._files, self._scan = sysfs, OpenFiles(max_open=0), Due(_LIST_SECONDS)
        self._devices: tuple[PciDevice, ...] = ()

    def list(self) -> tuple[PciDevice, ...]:
        """The devices that are present now, in the order of their addresses."""
        if self._scan.is_due():
            self._devices = list_endpoints(self._sysfs, self._files)
        return tuple(device for device in self._devices if os.path.isdir(device.folder))  # noqa: PTH112  # text


def list_endpoints(sysfs: str, files: OpenFiles) -> tuple[PciDevice, ...]:
    """The GPUs and network adapters by address, at most 64, without virtual functions."""
    folder = f"{sysfs}/bus/pci/devices"
    devices = []
    for address in list_names(folder):
        if _ADDRESS.fullmatch(address) and (kind := _kind(f"{folder}/{address}", files)):
            devices.append(_read_device(f"{folder}/{address}", address, kind, files))
            if len(devices) == _MAX_ENDPOINTS:
                break
    return tuple(devices)


def list_gpus(sysfs: Path) -> list[str]:
    """Addresses of the NVIDIA GPUs on the bus, sorted; empty where the kernel reports no bus.

    The bus still lists a GPU that its driver has lost: the difference is the number of lost GPUs.
    """
    folder, files = f"{sysfs}/bus/pci/devices", OpenFiles(max_open=0)
    return [name for name in list_names(folder) if _kind(f"{folder}/{name}", files) == "gpu"]


def read_link(folder: str, which: str, files: OpenFiles) -> tuple[float | None, int | None]:
    """Transfers per second and lanes of a link, ``current`` or ``max``; None if not reported."""
    match = _SPEED.match(files.text(f"{folder}/{which}_link_speed") or "")
    transfers_per_second = float(match[1]) * _GIGA if match else 0.0
    lanes = files.count(f"{folder}/{which}_link_width")
    has_lanes = lanes is not None and 0 < lanes <= _MAX_LANES
    # a device without a link reports a speed or a width of 0
    return transfers_per_second or None, lanes if has_lanes else None


def _kind(folder: str, files: OpenFiles) -> str:
    code = files.text(f"{folder}/class") or ""
    if code.startswith(_GPU_CLASSES):
        return "gpu" if files.text(f"{folder}/vendor") == _NVIDIA else ""
    # only a virtual function has the link physfn; its traffic is counted by its port already
    is_port = code.startswith(_NETWORK_CLASS) and not os.path.lexists(f"{folder}/physfn")
    return "nic" if is_port else ""


def _read_device(folder: str, address: str, kind: str, files: OpenFiles) -> PciDevice:
    real = os.path.realpath(folder)
    *parents, _ = real.split("/")
    bridges: list[str] = []
    while parents and _ADDRESS.fullmatch(parents[-1]):
        bridges.append(parents.pop())
    root = parents[-1] if parents and _ROOT.fullmatch(parents[-1]) else ""
    device_names = list_names(f"{folder}/infiniband") or list_names(f"{folder}/net")
    return PciDevice(
        address,
        kind,
        real,
        tuple(bridges),
        root,
        device_names[0] if device_names else "",
        files.count(f"{folder}/numa_node"),
    )
