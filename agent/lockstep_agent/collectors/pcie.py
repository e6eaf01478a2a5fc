"""The PCIe links of GPUs and network adapters: what they run at, and the errors at both ends."""

import re
from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.pci_tree import Endpoints, PciDevice, read_link
from lockstep_catalogue import pcie as metrics
from lockstep_catalogue.fabric_labels import AER_ERROR, SEVERITY

_LINE = re.compile(r"^(\w{1,32}) ([0-9]{1,20})$", re.MULTILINE)
_TOTAL = {
    "correctable": "TOTAL_ERR_COR",
    "nonfatal": "TOTAL_ERR_NONFATAL",
    "fatal": "TOTAL_ERR_FATAL",
}
_KINDS = frozenset(AER_ERROR.values)


class Pcie:
    """Reads the links by the kernel, which answers when no driver does.

    Args:
        sysfs: where /sys is.
        detail: tells the errors of the port above before there are any, and what the driver of a
            GPU tells too.
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
            port_above = device.bridges[0] if device.bridges else ""
            told = (device.address, device.kind, device.name, port_above, numa_node)
            yield Reading(metrics.PCIE_INFO, told, 1)
            yield from self._link(device)
            yield from self._errors(device.address, "device", device.folder)
            if device.upstream_folder:
                yield from self._errors(device.address, "port_above", device.upstream_folder)

    def _link(self, device: PciDevice) -> Iterator[Reading]:
        labels = (device.address,)
        if device.kind == "nic" or self._detail:
            speed, lanes = read_link(device.folder, "current", self._files)
            if speed is not None:
                yield Reading(metrics.PCIE_SPEED, labels, speed)
            if lanes is not None:
                yield Reading(metrics.PCIE_LANES, labels, lanes)
        ratio = link_ratio(device, self._files)
        if ratio is not None:
            yield Reading(metrics.PCIE_RATIO, labels, ratio)

    def _errors(self, address: str, end: str, folder: str) -> Iterator[Reading]:
        for severity in SEVERITY.values:
            text = self._files.text(f"{folder}/aer_dev_{severity}")
            counts = {name: int(count) for name, count in _LINE.findall(text or "")}
            total = counts.get(_TOTAL[severity])
            always = self._detail or end == "device"
            if total is not None and (
                always or self._has_happened((address, end, severity), total)
            ):
                yield Reading(metrics.PCIE_AER_ERRORS, (address, end, severity), total)
            for kind in sorted(_KINDS & counts.keys()):
                labels = (address, end, severity, kind)
                if self._has_happened(labels, counts[kind]):
                    yield Reading(metrics.PCIE_AER_KINDS, labels, counts[kind])

    def _has_happened(self, labels: tuple[str, ...], count: int) -> bool:
        """Whether there was ever one: what was told once is told on, though it fall back to 0."""
        if count:
            self._happened.add(labels)
        return labels in self._happened


def link_ratio(device: PciDevice, files: OpenFiles) -> float | None:
    """Speed times lanes of the link, against what both ends can do; None where unknown."""
    speed, lanes = read_link(device.folder, "current", files)
    ends = [read_link(device.folder, "max", files)]
    if device.upstream_folder:
        ends.append(read_link(device.upstream_folder, "max", files))
    speeds = [most for most, _ in ends if most is not None]
    widths = [most for _, most in ends if most is not None]
    if speed is None or lanes is None or not speeds or not widths:
        return None
    return min(speed * lanes / (min(speeds) * min(widths)), 1.0)
