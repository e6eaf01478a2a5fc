"""One GPU: model, address and serial numbers, as its driver reports them."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Gpu
from lockstep_catalogue import gpu as metrics

# NVML_DEVICE_ARCH_*
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


class GpuIdentity:
    """Reads what never changes in the life of a GPU."""

    name = "gpu_identity"
    tier = Tier.MINUTE

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def collect(self) -> Iterator[Reading]:
        """One info series; an unknown value is an empty label."""
        gpu = self._gpu
        gpu.ensure_handle()
        family = gpu.query("nvmlDeviceGetArchitecture")
        minor = gpu.query("nvmlDeviceGetMinorNumber")
        values = (
            gpu.model or "",
            _ARCHITECTURES.get(family, ""),
            gpu.address,
            "" if minor is None else str(minor),
            gpu.query("nvmlDeviceGetSerial") or "",
            gpu.query("nvmlDeviceGetVbiosVersion") or "",
        )
        yield Reading(metrics.GPU_INFO, (*gpu.labels, *map(_printable, values)), 1)


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable())
