"""One GPU: model, address and serial numbers, as its driver reports them."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.collectors.gpu.reading import Values, gpu_collector
from lockstep_agent.sources.nvml import Gpu, ids
from lockstep_catalogue import gpu as metrics
from lockstep_records.text.printable import drop_unprintable

_ARCHITECTURES = {
    ids.NVML_DEVICE_ARCH_KEPLER: "kepler",
    ids.NVML_DEVICE_ARCH_MAXWELL: "maxwell",
    ids.NVML_DEVICE_ARCH_PASCAL: "pascal",
    ids.NVML_DEVICE_ARCH_VOLTA: "volta",
    ids.NVML_DEVICE_ARCH_TURING: "turing",
    ids.NVML_DEVICE_ARCH_AMPERE: "ampere",
    ids.NVML_DEVICE_ARCH_ADA: "ada",
    ids.NVML_DEVICE_ARCH_HOPPER: "hopper",
    ids.NVML_DEVICE_ARCH_BLACKWELL: "blackwell",
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
