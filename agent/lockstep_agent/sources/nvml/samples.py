"""The rings of samples that a driver keeps of a GPU: what is new since the last look."""

import ctypes
import struct
from itertools import islice
from typing import Any

from lockstep_agent.sources.nvml.device import Gpu
from lockstep_agent.sources.nvml.values import value_of

_SAMPLE = struct.Struct("Q8s")  # microseconds, value


class SampleRing:
    """One ring of one GPU, by NVML's number of the kind of sample.

    The samples are read into a room that is kept: pynvml makes one for each look, and an object for
    each sample.
    """

    def __init__(self, gpu: Gpu, kind: int) -> None:
        self._gpu, self._kind = gpu, kind
        self._seen_microseconds = 0
        self._room: Any = None
        self._lacking_generation = 0

    def read(self) -> list[float]:
        """The values of the new samples, oldest first; empty without a ring.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        _ = self._gpu.handle
        if self._lacking_generation == self._gpu.generation:
            return []
        kind, count = ctypes.c_int(), ctypes.c_uint(len(self._room or ()))
        if self._room is None:
            if self._ask(kind, count, None):
                return []
            self._room = (self._gpu.nvml.c_nvmlSample_t * count.value)()
        if self._ask(kind, count, self._room):
            self._room = None  # it may have become too small
            return []
        told = islice(_SAMPLE.iter_unpack(self._room), count.value)
        new = sorted(
            (at, value)
            for at, raw in told
            if at > self._seen_microseconds and (value := value_of(kind.value, raw)) is not None
        )
        if new:
            self._seen_microseconds = new[-1][0]
        return [value for _, value in new]

    def _ask(self, kind: ctypes.c_int, count: ctypes.c_uint, room: Any) -> int:
        """The code of one call, 0 when it answered; not supported is learnt once."""
        after = ctypes.c_ulonglong(self._seen_microseconds)
        told = (ctypes.byref(kind), ctypes.byref(count), room)
        code = self._gpu.call("nvmlDeviceGetSamples", self._kind, after, *told)
        if self._gpu.is_unsupported(code):
            self._lacking_generation = self._gpu.generation
        return code
