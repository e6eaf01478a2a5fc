"""GPUs and network adapters in the PCI tree: address, bridges above, memory node, link."""

import os
import re
from dataclasses import dataclass

from lockstep_agent.sources.due import Due
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.rdma import names

_NVIDIA = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")
_NETWORK_CLASS = "0x02"
_MOST = 64
_LOOK_SECONDS = 60.0
_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}")
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) GT/s")
_GIGA = 1e9
_MOST_LANES = 32


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A GPU or a network adapter.

    Attributes:
        kind: a value of the label ``endpoint``.
        folder: its folder in the tree.
        above: addresses of the bridges above it, the nearest first; empty where unknown.
        root: the host bridge; empty where unknown.
        name: RDMA device, else network interface, else empty.
        numa_node: None where the kernel does not tell.
    """

    address: str
    kind: str
    folder: str
    above: tuple[str, ...]
    root: str
    name: str
    numa_node: int | None

    @property
    def folder_above(self) -> str | None:
        """The folder of the port at the other end of its link."""
        return self.folder.rpartition("/")[0] if self.above else None


class Endpoints:
    """Lists the GPUs and network adapters; new ones are looked for once a minute.

    Args:
        sysfs: where /sys is.
    """

    def __init__(self, sysfs: str) -> None:
        self._sysfs, self._files, self._look = sysfs, OpenFiles(most=0), Due(_LOOK_SECONDS)
        self._known: tuple[PciDevice, ...] = ()

    def list(self) -> tuple[PciDevice, ...]:
        """Those that are there now."""
        if self._look.is_due():
            self._known = list_endpoints(self._sysfs, self._files)
        return tuple(device for device in self._known if os.path.isdir(device.folder))  # noqa: PTH112  # text


def list_endpoints(sysfs: str, files: OpenFiles) -> tuple[PciDevice, ...]:
    """The GPUs and network adapters, by address, at most 64; no virtual functions."""
    folder = f"{sysfs}/bus/pci/devices"
    found = []
    for address in names(folder):
        if _ADDRESS.fullmatch(address) and (kind := _kind(f"{folder}/{address}", files)):
            found.append(_device(f"{folder}/{address}", address, kind, files))
            if len(found) == _MOST:
                break
    return tuple(found)


def link(folder: str, which: str, files: OpenFiles) -> tuple[float | None, int | None]:
    """Transfers per second and lanes of a link: ``current``, or ``max`` for what its end can do.

    None for what is not told, or told as 0: no link has none.
    """
    found = _SPEED.match(files.text(f"{folder}/{which}_link_speed") or "")
    speed = float(found[1]) * _GIGA if found else 0.0
    lanes = files.count(f"{folder}/{which}_link_width")
    known = lanes is not None and 0 < lanes <= _MOST_LANES
    return speed or None, lanes if known else None


def _kind(folder: str, files: OpenFiles) -> str:
    code = files.text(f"{folder}/class") or ""
    if code.startswith(_GPU_CLASSES):
        return "gpu" if files.text(f"{folder}/vendor") == _NVIDIA else ""
    is_port = code.startswith(_NETWORK_CLASS) and not os.path.lexists(f"{folder}/physfn")
    return "nic" if is_port else ""


def _device(folder: str, address: str, kind: str, files: OpenFiles) -> PciDevice:
    real = os.path.realpath(folder)
    *parents, _ = real.split("/")
    above: list[str] = []
    while parents and _ADDRESS.fullmatch(parents[-1]):
        above.append(parents.pop())
    root = parents[-1] if parents and _ROOT.fullmatch(parents[-1]) else ""
    called = names(f"{folder}/infiniband") or names(f"{folder}/net")
    return PciDevice(
        address,
        kind,
        real,
        tuple(above),
        root,
        called[0] if called else "",
        files.count(f"{folder}/numa_node"),
    )
