"""GPM, the activity counters of Hopper and newer: what a GPU did between two samples."""

import math
import struct
import threading
import time
from collections.abc import Iterable
from typing import Any

from lockstep_agent.sources.nvml.device import Gpu

_LOCK = threading.Lock()  # drivers have crashed on GPM calls side by side
_PATIENCE_SECONDS = 0.2
_LEAST_SECONDS = 0.1  # between two samples, by the driver's own rule
_ANSWER = "4xId24x"  # return code, value


class Gpm:
    """Two samples of one GPU, or of an instance of it, taken in turns.

    Args:
        wanted: numbers of the GPM metrics.
        instance: GPU instance of a split GPU; None for the whole.
    """

    def __init__(self, gpu: Gpu, wanted: Iterable[int], instance: int | None = None) -> None:
        self._gpu, self._wanted, self._instance = gpu, tuple(wanted), instance
        self._answers = struct.Struct(_ANSWER * len(self._wanted))
        self._asked: Any = None
        self._older: Any = None
        self._spare: Any = None
        self._taken_seconds = float("-inf")
        self._told: dict[int, float] = {}
        self._generation = 0
        self._supported = False

    def read(self) -> dict[int, float]:
        """Values since the last call by number; empty on the first, and where there is no GPM.

        Called again too soon, it tells the same.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        _ = self._gpu.handle
        if self._generation != self._gpu.generation:
            self._probe()
        if self._supported and time.monotonic() - self._taken_seconds < _LEAST_SECONDS:
            return self._told
        if not self._supported or not _LOCK.acquire(timeout=_PATIENCE_SECONDS):
            return {}  # another GPU hangs in GPM: without a value is better than hung too
        try:
            self._told = self._read()
            return self._told
        finally:
            _LOCK.release()

    def _probe(self) -> None:
        """Asks once a handle whether there is GPM; samples of an older handle are dropped."""
        self._generation = self._gpu.generation
        self._older = self._spare = None
        self._taken_seconds, self._told = float("-inf"), {}
        support = self._gpu.ask("nvmlGpmQueryDeviceSupport")
        self._supported = support is not None and bool(support.isSupportedDevice)

    def _read(self) -> dict[int, float]:
        nvml = self._gpu.nvml
        try:
            sample = self._spare or nvml.nvmlGpmSampleAlloc()
            self._spare = sample
            self._take(sample)
            self._taken_seconds = time.monotonic()
        except nvml.NVMLError as error:
            self._gpu.raise_when_lost(error.value)
            self._supported = not self._gpu.is_unsupported(error.value)
            return {}
        older, self._older, self._spare = self._older, sample, self._older
        if older is None:
            return {}
        return self._between(older, sample)

    def _take(self, sample: Any) -> None:
        if self._instance is None:
            self._gpu.nvml.nvmlGpmSampleGet(self._gpu.handle, sample)
        else:
            self._gpu.nvml.nvmlGpmMigSampleGet(self._gpu.handle, self._instance, sample)

    def _between(self, older: Any, newer: Any) -> dict[int, float]:
        nvml = self._gpu.nvml
        if self._asked is None:
            self._asked = self._ask()
        self._asked.sample1, self._asked.sample2 = older, newer
        try:
            nvml.nvmlGpmMetricsGet(self._asked)
        except nvml.NVMLError as error:
            self._gpu.raise_when_lost(error.value)
            return {}
        told = self._answers.unpack_from(self._asked, type(self._asked).metrics.offset)
        return {
            number: value
            for number, code, value in zip(self._wanted, told[::2], told[1::2], strict=True)
            if code == 0 and not math.isnan(value)
        }

    def _ask(self) -> Any:
        """The question, made once: it has 19 KB, of which few are looked at."""
        asked = self._gpu.nvml.c_nvmlGpmMetricsGet_t()
        asked.version = self._gpu.nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(self._wanted)
        for at, number in enumerate(self._wanted):
            asked.metrics[at].metricId = number
        return asked
