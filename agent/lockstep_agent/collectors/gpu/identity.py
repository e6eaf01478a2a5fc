"""One GPU: model, address and serial numbers, as its driver reports them."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.collectors.gpu.reading import Values, gpu_collector
from lockstep_agent.sources.nvml import Gpu
from lockstep_catalogue import gpu as metrics
from lockstep_records.text.printable import drop_unprintable

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


@gpu_collector("gpu_identity", Tier.MINUTE)
def identity(gpu: Gpu, _: Values) -> Iterator[Reading]:
    """One info series of what never changes in a GPU's life; an unknown value is an empty label."""
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
    yield Reading(metrics.GPU_INFO, (*gpu.labels, *map(drop_unprintable, values)), 1)
