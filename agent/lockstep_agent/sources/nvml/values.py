"""Numbers as NVML hands them over: eight bytes, and which of seven kinds they hold."""

import struct

_KINDS = tuple(map(struct.Struct, ("d", "I", "Q", "Q", "q", "i", "H")))


def value_of(kind: int, raw: bytes) -> float | None:
    """The number in a union of NVML; None of a kind that is not known.

    Args:
        kind: NVML's number of the kind.
        raw: the eight bytes.
    """
    if not 0 <= kind < len(_KINDS):
        return None
    (value,) = _KINDS[kind].unpack_from(raw)
    assert isinstance(value, int | float)
    return value
