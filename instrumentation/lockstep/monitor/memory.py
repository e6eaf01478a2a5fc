"""Memory of the process and its device, and allocations that failed."""

import os
import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from lockstep_records.page.layout import PERIODIC
from lockstep_records.page.writer import Slots

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_DEVICE_STATISTICS = {
    "device_allocated_bytes": "allocated_bytes.all.current",
    "device_reserved_bytes": "reserved_bytes.all.current",
    "device_peak_bytes": "allocated_bytes.all.peak",
}
_RETRIES, _FAILED = "num_alloc_retries", "num_ooms"


class Memory:
    """Writes the memory in use into the page, by the kernel's ``statm`` of this process."""

    def __init__(self, slots: Slots, statm: Path = Path("/proc/self/statm")) -> None:
        self._slots, self._statm = slots, statm
        self._counted = {_RETRIES: 0, _FAILED: 0}

    def sample(self) -> None:
        """Reads all once: some 20 us, and 100 us with a GPU; waits for no device."""
        try:
            resident = int(self._statm.read_bytes().split()[1]) * _PAGE_BYTES
        except (OSError, IndexError, ValueError):
            resident = None
        if resident is not None:
            self._slots.know("resident_bytes", resident)
        # Linux has ru_maxrss in KiB.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._slots.know("resident_peak_bytes", max(peak, resident or 0))
        # Importing torch here, or its first CUDA call, would take seconds and memory of the GPU.
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            self.read_device(torch.cuda.memory_stats())

    def read_device(self, stats: dict[str, int]) -> None:
        """Takes over ``torch.cuda.memory_stats()``; of its counters the page adds what is new."""
        for name, key in _DEVICE_STATISTICS.items():
            if key in stats:
                self._slots.know(name, stats[key])
        for name, key in (("allocator_retries", _RETRIES), ("out_of_memory", _FAILED)):
            now = stats.get(key, 0)
            # reset_accumulated_memory_stats() of the user's sets them back to 0.
            self._slots.count(name, number=max(0, now - self._counted[key]))
            self._counted[key] = now

    def count_failure(self, *, on_device: bool, requested_bytes: int | None) -> None:
        """Counts an allocation that failed; those of a GPU are in its allocator's own count."""
        torch = sys.modules.get("torch")
        if not (on_device and torch is not None and torch.cuda.is_initialized()):
            self._slots.count("out_of_memory")
        if requested_bytes is not None:
            self._slots.know("requested_bytes", requested_bytes)


assert all(name in PERIODIC.presence for name in _DEVICE_STATISTICS)

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}
# The wording of the allocators of CUDA, of the CPU (a plain RuntimeError) and of numpy.
_REQUESTED = re.compile(
    r"(?:tried to allocate|unable to allocate) ([\d.]+) ?([KMGTPE]?)i?(?:B|bytes)\b", re.IGNORECASE
)
_HOST = ("can't allocate memory", "not enough memory")


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory:
    """What ran out, ``GPU`` or ``host``, and the allocation that failed, where that is told."""

    memory: str
    requested_bytes: int | None

    def __str__(self) -> str:
        """One clause for people."""
        request = ""
        if self.requested_bytes is not None:
            request = f", asking for {self.requested_bytes} bytes"
        return f"out of {self.memory} memory{request}"


def out_of_memory_in(error: BaseException) -> OutOfMemory | None:
    """What ran out, if that is what the error says."""
    text = str(error)
    torch = sys.modules.get("torch")  # an error of torch's comes from a torch that is loaded
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return OutOfMemory(memory="GPU", requested_bytes=_requested_bytes(text))
    plain = type(error) is RuntimeError and any(sign in text for sign in _HOST)
    if isinstance(error, MemoryError) or plain:
        return OutOfMemory(memory="host", requested_bytes=_requested_bytes(text))
    return None


def _requested_bytes(text: str) -> int | None:
    match = _REQUESTED.search(text)
    return int(float(match[1]) * _UNITS[match[2].upper()]) if match else None
