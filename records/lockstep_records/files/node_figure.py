"""Measured figures of a node, how people write them, and what makers publish of their GPUs."""

from dataclasses import dataclass

FLOPS, BYTES = "flops_per_second", "bytes_per_second"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One measured figure; more is faster.

    Attributes:
        probe: gemm, memory, host_to_device, device_to_host or all_reduce.
        index: number of the device on this node; None for all devices.
        value: rate in ``unit``.
        unit: flops_per_second or bytes_per_second.
    """

    probe: str
    device: str
    index: int | None
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Published:
    """What the document ``source`` publishes of a GPU: dense bfloat16 FLOP/s, bytes/s, NVLinks."""

    flops: float
    memory_bytes: float
    num_links: int
    source: str


# Longer names first: the first that a product's name contains holds.
_PUBLISHED = {
    "GB200": Published(2.5e15, 8.0e12, 18, "NVIDIA GB200 NVL72 datasheet"),
    "B200": Published(2.25e15, 8.0e12, 18, "NVIDIA Blackwell architecture brief"),
    "GH200": Published(9.89e14, 4.0e12, 18, "NVIDIA GH200 datasheet"),
    "H200 NVL": Published(8.35e14, 4.8e12, 18, "NVIDIA H200 datasheet"),
    "H200": Published(9.89e14, 4.8e12, 18, "NVIDIA H200 datasheet"),
    "H100 NVL": Published(8.35e14, 3.9e12, 12, "NVIDIA H100 NVL datasheet"),
    "H100 PCIe": Published(7.56e14, 2.0e12, 12, "NVIDIA H100 datasheet"),
    "H100": Published(9.89e14, 3.35e12, 18, "NVIDIA H100 datasheet"),
    "A100-SXM4-80GB": Published(3.12e14, 2.039e12, 12, "NVIDIA A100 datasheet"),
    "A100-SXM4-40GB": Published(3.12e14, 1.555e12, 12, "NVIDIA A100 datasheet"),
    "A100 80GB PCIe": Published(3.12e14, 1.935e12, 12, "NVIDIA A100 datasheet"),
    "A100-PCIE-40GB": Published(3.12e14, 1.555e12, 12, "NVIDIA A100 datasheet"),
    "L40S": Published(3.62e14, 8.64e11, 0, "NVIDIA L40S datasheet"),
    "L4": Published(1.21e14, 3.0e11, 0, "NVIDIA L4 datasheet"),
    "MI300X": Published(1.307e15, 5.3e12, 0, "AMD Instinct MI300X datasheet"),
    "MI250X": Published(3.83e14, 3.2e12, 0, "AMD Instinct MI250X datasheet"),
}
_LANE_BYTES = {1: 2.5e8, 2: 5e8, 3: 9.85e8, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}  # a direction


def published_of(model: str) -> Published | None:
    """What is published of a product; None where this table does not have it."""
    return next((found for name, found in _PUBLISHED.items() if name in model), None)


def published_rate(figure: Figure) -> float | None:
    """The published rate that a figure of a GPU is compared with; None where there is none."""
    published = published_of(figure.device)
    if published is None:
        return None
    return {"gemm": published.flops, "memory": published.memory_bytes}.get(figure.probe)


def pcie_rate(generation: int, width: int) -> float | None:
    """Bytes a second and direction of a PCIe link; None for a generation that is not known."""
    lane = _LANE_BYTES.get(generation)
    return None if lane is None else lane * width


def format_rate(value: float, unit: str) -> str:
    """A rate as people write it, such as ``664 TFLOP/s`` or ``2.96 TB/s``."""
    name = "FLOP/s" if unit == FLOPS else "B/s" if unit == BYTES else f" {unit}"
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{name}"
    return f"{value:.3g} {name}"
