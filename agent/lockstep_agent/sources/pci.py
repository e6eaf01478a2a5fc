"""The PCI devices of the node, from /sys/bus/pci: GPUs that a driver may no longer tell."""

from pathlib import Path

from lockstep_agent.sources.sysfs import read_text

_NVIDIA = "0x10de"
_DISPLAY_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controller


def list_gpus(sysfs: Path) -> list[str]:
    """Addresses of the NVIDIA GPUs on the bus; empty where the kernel does not tell."""
    folder = sysfs / "bus" / "pci" / "devices"
    if not folder.is_dir():
        return []
    return sorted(
        device.name
        for device in folder.iterdir()
        if read_text(device / "vendor") == _NVIDIA
        and (read_text(device / "class") or "").startswith(_DISPLAY_CLASSES)
    )


def count_gpus(sysfs: Path) -> int:
    """How many NVIDIA GPUs are on the bus; 0 where the kernel does not tell."""
    return len(list_gpus(sysfs))
