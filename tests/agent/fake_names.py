"""Names of ``nvidia-smi`` values in the driver stub's state file."""

import re

MIB = 1 << 20
ECC_LOCATIONS = (2, 7)  # DRAM and SRAM: an H100 supports no others
_THRESHOLD, _CLOCK = "nvmlDeviceGetTemperatureThreshold", "nvmlDeviceGetClockInfo"
_MAX_CLOCK = "nvmlDeviceGetMaxClockInfo"
KEY_BY_XML_PATH = {
    "temperature/gpu_temp": ("nvmlDeviceGetTemperature.0", 1),
    "temperature/memory_temp": ("field.82.0", 1),
    "temperature/gpu_temp_max_threshold": (f"{_THRESHOLD}.0", 1),
    "temperature/gpu_temp_slow_threshold": (f"{_THRESHOLD}.1", 1),
    "temperature/gpu_temp_max_mem_threshold": (f"{_THRESHOLD}.2", 1),
    "temperature/gpu_temp_max_gpu_threshold": (f"{_THRESHOLD}.3", 1),
    "gpu_power_readings/power_draw": ("nvmlDeviceGetPowerUsage", 1000),
    "gpu_power_readings/current_power_limit": ("nvmlDeviceGetEnforcedPowerLimit", 1000),
    "power_readings/power_draw": ("nvmlDeviceGetPowerUsage", 1000),
    "power_readings/enforced_power_limit": ("nvmlDeviceGetEnforcedPowerLimit", 1000),
    "clocks/graphics_clock": (f"{_CLOCK}.0", 1),
    "clocks/sm_clock": (f"{_CLOCK}.1", 1),
    "clocks/mem_clock": (f"{_CLOCK}.2", 1),
    "clocks/video_clock": (f"{_CLOCK}.3", 1),
    "max_clocks/sm_clock": (f"{_MAX_CLOCK}.1", 1),
    "max_clocks/mem_clock": (f"{_MAX_CLOCK}.2", 1),
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": ("nvmlDeviceGetCurrPcieLinkGeneration", 1),
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": ("nvmlDeviceGetMaxPcieLinkGeneration", 1),
    "pci/pci_gpu_link_info/link_widths/current_link_width": ("nvmlDeviceGetCurrPcieLinkWidth", 1),
    "pci/pci_gpu_link_info/link_widths/max_link_width": ("nvmlDeviceGetMaxPcieLinkWidth", 1),
    "pci/replay_counter": ("nvmlDeviceGetPcieReplayCounter", 1),
}
H100_SYSTEM = {
    "nvmlDeviceGetCurrentClocksEventReasons": 4,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    **{f"{_CLOCK}.{number}": mhz for number, mhz in enumerate((1980, 1980, 2619, 1545))},
    **{f"{_MAX_CLOCK}.{number}": mhz for number, mhz in enumerate((1980, 1980, 2619, 1545))},
    **{f"nvmlDeviceGetRemappedRows.{key}": 0 for key in ("corrected", "uncorrected")},
    **{f"nvmlDeviceGetRemappedRows.{key}": 0 for key in ("pending", "failed")},
    "nvmlDeviceGetRowRemapperHistogram.max": 2560,
    **{f"nvmlDeviceGetSramEccErrorStatus.{key}": 0 for key in ("exceeded", "l2", "sm", "pcie")},
    "nvmlDeviceGetGpuFabricInfoV.state": 3,
    "nvmlDeviceGetGpuFabricInfoV.status": 0,
    "nvmlDeviceGetGpuFabricInfoV.clique": 1,
    "nvmlDeviceGetGpuFabricInfoV.mask": 0x1AA,  # four checks false, no fault
}


def smi_number(text: str | None) -> float:
    """The number at the beginning of a value of nvidia-smi; 0 without one."""
    match = re.match(r"-?[0-9.]+", text or "")
    return float(match[0]) if match else 0.0
