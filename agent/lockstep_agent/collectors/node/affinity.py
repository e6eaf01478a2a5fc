"""The network adapters that are nearest to each GPU, and the rail that each is on."""

from collections.abc import Iterator, Sequence

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.open_files import OpenFiles
from lockstep_agent.sources.pci_tree import PciDevice, list_endpoints
from lockstep_catalogue import fabric as metrics
from lockstep_catalogue.labels import DISTANCE

_NEAREST_FIRST = DISTANCE.values
# one switch: a downstream port above each device, then the upstream port above both
_MAX_SWITCH_HOPS = 2


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
