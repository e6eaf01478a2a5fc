"""Tells running out of memory apart from all other errors: whose memory, and how much was asked."""

import re
import sys
from dataclasses import dataclass

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}
# As the allocators of CUDA, of the CPU (which raises a plain RuntimeError) and of numpy say it.
_ASKED = re.compile(
    r"(?:tried to allocate|unable to allocate) ([\d.]+) ?([KMGTPE]?)i?(?:B|bytes)\b", re.IGNORECASE
)
_HOST = ("can't allocate memory", "not enough memory")


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory:
    """What ran out.

    Attributes:
        place: such as ``GPU`` or ``host``.
        asked_bytes: of the allocation that failed; None where the error does not say.
    """

    place: str
    asked_bytes: int | None

    def __str__(self) -> str:
        """One clause for people."""
        asked = "" if self.asked_bytes is None else f", asking for {self.asked_bytes} bytes"
        return f"out of {self.place} memory{asked}"


def out_of_memory_in(error: BaseException) -> OutOfMemory | None:
    """What ran out, if that is what the error says."""
    text = str(error)
    torch = sys.modules.get("torch")  # an error of torch's comes from a torch that is loaded
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return OutOfMemory(place="GPU", asked_bytes=_asked_in(text))
    plain = type(error) is RuntimeError and any(sign in text for sign in _HOST)
    if isinstance(error, MemoryError) or plain:
        return OutOfMemory(place="host", asked_bytes=_asked_in(text))
    return None


def _asked_in(text: str) -> int | None:
    found = _ASKED.search(text)
    return int(float(found[1]) * _UNITS[found[2].upper()]) if found else None
