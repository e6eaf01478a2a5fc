"""The GPU driver through NVML: plain values or None; the only package that imports pynvml."""

from lockstep_agent.sources.nvml import ids
from lockstep_agent.sources.nvml.device import Driver, Gpu, GpuLostError, NoDriverError
from lockstep_agent.sources.nvml.fields import ALL_LINKS, Fields

__all__ = ["ALL_LINKS", "Driver", "Fields", "Gpu", "GpuLostError", "NoDriverError", "ids"]
