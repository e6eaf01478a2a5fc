"""Which network adapters are nearest to which GPU, and on which rail they are."""

from collections.abc import Iterator, Sequence

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.pci_tree import PciDevice, list_endpoints
from lockstep_catalogue import pcie as metrics
from lockstep_catalogue.fabric_labels import DISTANCE

_NEAREST_FIRST = DISTANCE.values


class Affinity:
    """Tells the nearest adapters of each GPU, by the bridges and memory nodes that they share.

    Args:
        sysfs: where /sys is.
    """

    name = "affinity"
    tier = Tier.MINUTE

    def __init__(self, sysfs: str) -> None:
        self._sysfs = sysfs

    def collect(self) -> Iterator[Reading]:
        """One series for each GPU and each of its nearest adapters; none where all is far."""
        devices = list_endpoints(self._sysfs, OpenFiles(max_open=0))
        gpus = [device for device in devices if device.kind == "gpu"]
        adapters = [device for device in devices if device.kind == "nic" and device.name]
        near = {gpu.address: nearest(gpu, adapters) for gpu in gpus}
        on_rails = {nic.address for _, found in near.values() for nic in found}
        rails = {address: str(rail) for rail, address in enumerate(sorted(on_rails))}
        for gpu, (path, found) in near.items():
            for nic in found:
                yield Reading(metrics.AFFINITY, (gpu, nic.name, path, rails[nic.address]), 1)


def nearest(gpu: PciDevice, adapters: Sequence[PciDevice]) -> tuple[str, tuple[PciDevice, ...]]:
    """The shortest kind of path from a GPU, and the adapters that are so near.

    Adapters beyond the GPU's memory node are near to none: one would be as good as another.
    """
    paths = {nic.address: path_between(gpu, nic) for nic in adapters}
    best = min(paths.values(), key=_NEAREST_FIRST.index, default=_NEAREST_FIRST[-1])
    if best == _NEAREST_FIRST[-1]:
        return best, ()
    return best, tuple(nic for nic in adapters if paths[nic.address] == best)


def path_between(gpu: PciDevice, nic: PciDevice) -> str:
    """What lies between two devices, in the words of ``nvidia-smi topo``."""
    common = [bridge for bridge in gpu.bridges if bridge in nic.bridges]
    if common:
        hops = gpu.bridges.index(common[0]) + nic.bridges.index(common[0])
        return "pix" if hops <= _HOPS_OF_ONE_SWITCH else "pxb"
    if gpu.root and gpu.root == nic.root:
        return "phb"
    if gpu.numa_node is not None and gpu.numa_node == nic.numa_node:
        return "node"
    return "sys"


_HOPS_OF_ONE_SWITCH = 2  # each has a downstream port of the switch above it, then the same upstream
