"""NVML's union of numbers: eight bytes, and which of seven types they hold."""

import struct

# in the order of nvmlValueType_t
_TYPES = tuple(map(struct.Struct, ("d", "I", "Q", "Q", "q", "i", "H")))


def unpack_value(kind: int, raw: bytes) -> float | None:
    """The number in a union of NVML; None for an unknown type."""
    if not 0 <= kind < len(_TYPES):
        return None
    (value,) = _TYPES[kind].unpack_from(raw)
    assert isinstance(value, int | float)
    return value
