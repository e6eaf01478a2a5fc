"""One GPU: what it is, as its driver and its board tell."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Gpu
from lockstep_catalogue import gpu as metrics

_ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
}


class Identity:
    """Reads what stays the same for the life of a GPU."""

    name = "gpu_identity"
    tier = Tier.MINUTE

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def collect(self) -> Iterator[Reading]:
        """One info series; what is unknown is an empty label."""
        gpu = self._gpu
        _ = gpu.handle
        family = gpu.ask("nvmlDeviceGetArchitecture")
        minor = gpu.ask("nvmlDeviceGetMinorNumber")
        told = (
            gpu.model or "",
            _ARCHITECTURES.get(family, ""),
            self._address(),
            "" if minor is None else str(minor),
            gpu.ask("nvmlDeviceGetSerial") or "",
            gpu.ask("nvmlDeviceGetVbiosVersion") or "",
        )
        yield Reading(metrics.GPU_INFO, (*gpu.labels, *map(_printable, told)), 1)

    def _address(self) -> str:
        """The PCI address as /sys writes it: four digits of domain, lower case."""
        info = self._gpu.ask("nvmlDeviceGetPciInfo_v3")
        if info is None:
            return ""
        return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable())
