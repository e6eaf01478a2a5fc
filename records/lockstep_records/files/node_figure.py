"""One measured figure of a node: the preflight prints it, the doctor compares it with a fleet."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One measured figure; more is faster.

    Attributes:
        probe: gemm, memory or all_reduce.
        device: product name of the device, the same on every node of a kind.
        index: number of the device on this node; None for all devices.
        value: rate in ``unit``.
        unit: flops_per_second or bytes_per_second.
    """

    probe: str
    device: str
    index: int | None
    value: float
    unit: str
