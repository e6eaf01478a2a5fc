"""PCIe links of GPUs and network cards by the kernel, and which of them are near each other."""

import re
from collections.abc import Iterator, Sequence

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.sources.pci_tree import Endpoints, PciDevice, list_endpoints, read_link
from lockstep_agent.sources.sysfs import OpenFiles
from lockstep_catalogue import fabric as metrics
from lockstep_catalogue.labels import AER_ERROR, DISTANCE, SEVERITY

_ERROR_COUNT = re.compile(r"^(\w{1,32}) ([0-9]{1,20})$", re.MULTILINE)
_TOTAL = {
    "correctable": "TOTAL_ERR_COR",
    "nonfatal": "TOTAL_ERR_NONFATAL",
    "fatal": "TOTAL_ERR_FATAL",
}
_KINDS = frozenset(AER_ERROR.values)
_NEAREST_FIRST = DISTANCE.values
# one switch: a downstream port above each device, then the upstream port above both
_MAX_SWITCH_HOPS = 2


class Pcie:
    """Reads the links from /sys, which answers even when a GPU's driver hangs.

    Args:
        detail: exports the errors of the upstream port while they are 0, and for GPUs the speed and
            width that their driver reports too.
    """

    name = "pcie"
    tier = Tier.TEN_SECONDS

    def __init__(self, sysfs: str, *, detail: bool = False) -> None:
        self._endpoints, self._files, self._detail = Endpoints(sysfs), OpenFiles(max_open=0), detail
        self._happened: set[tuple[str, ...]] = set()

    def collect(self) -> Iterator[Reading]:
        """Links and errors of each GPU and network adapter."""
        for device in self._endpoints.list():
            numa_node = "" if device.numa_node is None else str(device.numa_node)
            upstream_port = device.bridges[0] if device.bridges else ""
            labels = (device.address, device.kind, device.name, upstream_port, numa_node)
            yield Reading(metrics.PCIE_INFO, labels, 1)
            yield from self._link(device)
            yield from self._errors(device.address, "device", device.folder)
            if device.upstream_folder:
                yield from self._errors(device.address, "port_above", device.upstream_folder)

    def _link(self, device: PciDevice) -> Iterator[Reading]:
        labels = (device.address,)
        if device.kind == "nic" or self._detail:
            transfers_per_second, lanes = read_link(device.folder, "current", self._files)
            yield from present(metrics.PCIE_SPEED, labels, transfers_per_second)
            yield from present(metrics.PCIE_LANES, labels, lanes)
        yield from present(metrics.PCIE_RATIO, labels, link_ratio(device, self._files))

    def _errors(self, address: str, end: str, folder: str) -> Iterator[Reading]:
        for severity in SEVERITY.values:
            text = self._files.text(f"{folder}/aer_dev_{severity}")
            counts = {name: int(count) for name, count in _ERROR_COUNT.findall(text or "")}
            total = counts.get(_TOTAL[severity])
            is_always_exported = self._detail or end == "device"
            if total is not None and (
                is_always_exported or self._has_happened((address, end, severity), total)
            ):
                yield Reading(metrics.PCIE_AER_ERRORS, (address, end, severity), total)
            for kind in sorted(_KINDS & counts.keys()):
                labels = (address, end, severity, kind)
                if self._has_happened(labels, counts[kind]):
                    yield Reading(metrics.PCIE_AER_KINDS, labels, counts[kind])

    def _has_happened(self, labels: tuple[str, ...], count: int) -> bool:
        """Whether the count was ever above 0."""
        # a series that was exported stays: after a reset to 0 it must not vanish
        if count:
            self._happened.add(labels)
        return labels in self._happened


def link_ratio(device: PciDevice, files: OpenFiles) -> float | None:
    """Bandwidth of a link divided by what both ends support, 0 to 1; None where unknown."""
    transfers_per_second, lanes = read_link(device.folder, "current", files)
    # the slower end counts: a fast device in a slower slot is not faulty
    ends = [read_link(device.folder, "max", files)]
    if device.upstream_folder:
        ends.append(read_link(device.upstream_folder, "max", files))
    speeds = [speed for speed, _ in ends if speed is not None]
    widths = [width for _, width in ends if width is not None]
    if transfers_per_second is None or lanes is None or not speeds or not widths:
        return None
    return min(transfers_per_second * lanes / (min(speeds) * min(widths)), 1.0)


class Affinity:
    """Finds the nearest adapters of each GPU by the bridges and memory nodes that they share.

    Args:
        adapters: where the names of each GPU's adapters are kept, by the GPU's PCI address.
    """

    name = "affinity"
    tier = Tier.MINUTE

    def __init__(self, sysfs: str, adapters: dict[str, tuple[str, ...]] | None = None) -> None:
        self._sysfs = sysfs
        self._adapters = adapters if adapters is not None else {}

    def collect(self) -> Iterator[Reading]:
        """One series for each GPU and each of its nearest adapters; none where all are far."""
        devices = list_endpoints(self._sysfs, OpenFiles(max_open=0))
        gpus = [device for device in devices if device.kind == "gpu"]
        adapters = [device for device in devices if device.kind == "nic" and device.name]
        nearest = {gpu.address: nearest_adapters(gpu, adapters) for gpu in gpus}
        self._adapters |= {
            gpu: tuple(nic.name for nic in nics) for gpu, (_, nics) in nearest.items()
        }
        # only adapters next to a GPU have a rail: the others carry storage and management
        on_rails = {nic.address for _, nics in nearest.values() for nic in nics}
        rails = {address: str(rail) for rail, address in enumerate(sorted(on_rails))}
        for gpu, (path, nics) in nearest.items():
            for nic in nics:
                yield Reading(metrics.AFFINITY, (gpu, nic.name, path, rails[nic.address]), 1)


def nearest_adapters(
    gpu: PciDevice, adapters: Sequence[PciDevice]
) -> tuple[str, tuple[PciDevice, ...]]:
    """The shortest kind of path from a GPU, and the adapters at that distance.

    Empty where all adapters are beyond the GPU's memory node.
    """
    paths = {nic.address: path_between(gpu, nic) for nic in adapters}
    shortest = min(paths.values(), key=_NEAREST_FIRST.index, default=_NEAREST_FIRST[-1])
    if shortest == _NEAREST_FIRST[-1]:  # beyond the memory node one is as good as another
        return shortest, ()
    return shortest, tuple(nic for nic in adapters if paths[nic.address] == shortest)


def path_between(gpu: PciDevice, nic: PciDevice) -> str:
    """The kind of path between two devices, in the words of ``nvidia-smi topo``."""
    common = [bridge for bridge in gpu.bridges if bridge in nic.bridges]
    if common:
        hops = gpu.bridges.index(common[0]) + nic.bridges.index(common[0])
        return "pix" if hops <= _MAX_SWITCH_HOPS else "pxb"
    if gpu.root and gpu.root == nic.root:
        return "phb"
    if gpu.numa_node is not None and gpu.numa_node == nic.numa_node:
        return "node"
    return "sys"
