"""Field values and rings of samples: each read in one call, into a buffer that is kept."""

import ctypes
import struct
from collections.abc import Iterable
from itertools import islice
from typing import Any

from lockstep_agent.sources.nvml.device import Gpu
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
Field = tuple[int, int]  # field id, scope: a link, a kind of power, or 0
ALL_LINKS = 0xFFFF_FFFF  # scope of the NVLink traffic fields that sums over all links
_ANSWER = struct.Struct("24xII8s")  # kind of value, return code, value
_SAMPLE = struct.Struct("Q8s")  # microseconds, value


def unpack_value(kind: int, raw: bytes) -> float | None:
    """The number in a union of NVML; None for an unknown type."""
    if kind not in _TYPES:
        return None
    (value,) = _TYPES[kind].unpack_from(raw)
    assert isinstance(value, int | float)
    return value


class _Batch:
    """Fields and the buffer of their values, allocated once."""

    def __init__(self, gpu: Gpu, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        # pynvml allocates and fills a new array for each call: 39 us for 47 fields, against 0.5 us
        self.buffer = (gpu.nvml.c_nvmlFieldValue_t * len(fields))(*fields)


class Fields:
    """Some fields of one GPU, as pairs of field id and scope, read in one call.

    A field that the driver lacks is queried once and then left out. A field that is rejected in the
    batch is queried by itself before it is given up.
    """

    def __init__(self, gpu: Gpu, fields: Iterable[Field]) -> None:
        self._gpu = gpu
        self._fields = tuple(fields)
        self._batch = _Batch(gpu, ())
        self._generation = 0

    def read(self) -> dict[Field, float]:
        """The values by field, in the driver's units; a field without an answer is left out.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        self._gpu.ensure_handle()
        if self._generation == self._gpu.generation:
            return self._query(self._batch)[0] if self._batch.fields else {}
        values = self._probe(self._fields)
        self._generation = self._gpu.generation
        return values

    def _probe(self, fields: tuple[Field, ...]) -> dict[Field, float]:
        values, rejected = self._query(_Batch(self._gpu, fields))
        # one unsupported field makes others of the batch vanish on GB200
        # (https://github.com/NVIDIA/DCGM/issues/581), so each gets a call of its own
        retries = {field: self._query(_Batch(self._gpu, (field,))) for field in rejected}
        for retried_values, _ in retries.values():
            values.update(retried_values)
        unsupported = {field for field, (_, refused) in retries.items() if refused}
        self._batch = _Batch(self._gpu, tuple(each for each in fields if each not in unsupported))
        return values

    def _query(self, batch: _Batch) -> tuple[dict[Field, float], list[Field]]:
        """Values by field, and the fields that the driver says it lacks."""
        if self._gpu.call("nvmlDeviceGetFieldValues", len(batch.fields), batch.buffer):
            return self._bisect(batch.fields)
        values: dict[Field, float] = {}
        rejected: list[Field] = []
        answers = _ANSWER.iter_unpack(batch.buffer)
        for field, (kind, code, raw) in zip(batch.fields, answers, strict=True):
            if code == 0:
                value = unpack_value(kind, raw)
                if value is not None:
                    values[field] = value
                continue
            self._gpu.raise_when_lost(code)
            if self._gpu.is_unsupported(code):
                rejected.append(field)
        return values, rejected

    def _bisect(self, fields: tuple[Field, ...]) -> tuple[dict[Field, float], list[Field]]:
        """Queries halves, down to the field for which the entire call fails."""
        if len(fields) == 1:
            return {}, list(fields)
        half = len(fields) // 2
        first_values, first_rejected = self._query(_Batch(self._gpu, fields[:half]))
        second_values, second_rejected = self._query(_Batch(self._gpu, fields[half:]))
        return {**first_values, **second_values}, [*first_rejected, *second_rejected]


class SampleRing:
    """One ring of one GPU."""

    def __init__(self, gpu: Gpu, kind: int) -> None:
        self._gpu, self._kind = gpu, kind
        self._newest_microseconds = 0
        # kept between reads: pynvml allocates a buffer for each, and an object for each sample
        self._buffer: Any = None
        self._unsupported_generation = 0

    def read(self) -> list[float]:
        """The values of the new samples in the driver's unit, oldest first; empty without a ring.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        self._gpu.ensure_handle()
        if self._unsupported_generation == self._gpu.generation:
            return []
        kind, count = ctypes.c_int(), ctypes.c_uint(len(self._buffer or ()))
        if self._buffer is None:
            if self._call(kind, count, None):
                return []
            self._buffer = (self._gpu.nvml.c_nvmlSample_t * count.value)()
        if self._call(kind, count, self._buffer):
            self._buffer = None  # it may have become too small
            return []
        samples = islice(_SAMPLE.iter_unpack(self._buffer), count.value)
        new_samples = sorted(
            (microseconds, value)
            for microseconds, raw in samples
            if microseconds > self._newest_microseconds
            and (value := unpack_value(kind.value, raw)) is not None
        )
        if new_samples:
            self._newest_microseconds = new_samples[-1][0]
        return [value for _, value in new_samples]

    def _call(self, kind: ctypes.c_int, count: ctypes.c_uint, buffer: Any) -> int:
        """The code of one call, 0 for success; an unsupported ring is not read again."""
        after = ctypes.c_ulonglong(self._newest_microseconds)
        outputs = (ctypes.byref(kind), ctypes.byref(count), buffer)
        code = self._gpu.call("nvmlDeviceGetSamples", self._kind, after, *outputs)
        if self._gpu.is_unsupported(code):
            self._unsupported_generation = self._gpu.generation
        return code
