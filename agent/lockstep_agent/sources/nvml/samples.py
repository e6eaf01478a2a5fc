"""The ring of samples that a driver keeps of a GPU: the samples since the last read."""

import ctypes
import struct
from itertools import islice
from typing import Any

from lockstep_agent.sources.nvml.device import Gpu
from lockstep_agent.sources.nvml.values import unpack_value

_SAMPLE = struct.Struct("Q8s")  # microseconds, value


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
