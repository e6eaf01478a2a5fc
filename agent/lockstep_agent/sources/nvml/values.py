"""NVML's union of numbers: eight bytes, and which of seven types they hold."""

import struct

from lockstep_agent.sources.nvml.ids import (
    NVML_VALUE_TYPE_DOUBLE,
    NVML_VALUE_TYPE_SIGNED_INT,
    NVML_VALUE_TYPE_SIGNED_LONG_LONG,
    NVML_VALUE_TYPE_UNSIGNED_INT,
    NVML_VALUE_TYPE_UNSIGNED_LONG,
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
    NVML_VALUE_TYPE_UNSIGNED_SHORT,
)

_TYPES = {
    NVML_VALUE_TYPE_DOUBLE: struct.Struct("d"),
    NVML_VALUE_TYPE_UNSIGNED_INT: struct.Struct("I"),
    NVML_VALUE_TYPE_UNSIGNED_LONG: struct.Struct("Q"),
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: struct.Struct("Q"),
    NVML_VALUE_TYPE_SIGNED_LONG_LONG: struct.Struct("q"),
    NVML_VALUE_TYPE_SIGNED_INT: struct.Struct("i"),
    NVML_VALUE_TYPE_UNSIGNED_SHORT: struct.Struct("H"),
}


def unpack_value(kind: int, raw: bytes) -> float | None:
    """The number in a union of NVML; None for an unknown type."""
    if kind not in _TYPES:
        return None
    (value,) = _TYPES[kind].unpack_from(raw)
    assert isinstance(value, int | float)
    return value
