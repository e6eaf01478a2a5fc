"""Recognises errors of memory that ran out: which memory, and how many bytes were requested."""

import re
import sys
from dataclasses import dataclass

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}
# The wording of the allocators of CUDA, of the CPU (a plain RuntimeError) and of numpy.
_REQUESTED = re.compile(
    r"(?:tried to allocate|unable to allocate) ([\d.]+) ?([KMGTPE]?)i?(?:B|bytes)\b", re.IGNORECASE
)
_HOST = ("can't allocate memory", "not enough memory")


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory:
    """What ran out.

    Attributes:
        memory: ``GPU`` or ``host``.
        requested_bytes: of the allocation that failed; None where the error does not say.
    """

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
