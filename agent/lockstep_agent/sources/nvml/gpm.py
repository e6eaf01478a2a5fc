"""GPM, the activity counters of Hopper and newer: what a GPU did between two samples."""

import math
import struct
import threading
import time
from collections.abc import Iterable
from typing import Any

from lockstep_agent.sources.nvml.device import Gpu

# one lock for all GPUs: gpud reports drivers that crash on parallel GPM calls
_LOCK = threading.Lock()
_LOCK_TIMEOUT_SECONDS = 0.2
_MIN_INTERVAL_SECONDS = 0.1  # between two samples; the driver rejects a shorter one
_ANSWER = "4xId24x"  # return code, value


class Gpm:
    """Two samples of one GPU, or of one of its MIG instances, taken in turns.

    Args:
        metric_ids: NVML's numbers of the GPM metrics.
        instance: number of a GPU instance of a split GPU; None for the entire GPU.
    """

    def __init__(self, gpu: Gpu, metric_ids: Iterable[int], instance: int | None = None) -> None:
        self._gpu, self._metric_ids, self._instance = gpu, tuple(metric_ids), instance
        self._answers = struct.Struct(_ANSWER * len(self._metric_ids))
        self._request: Any = None
        self._older: Any = None
        self._spare: Any = None
        self._sampled_seconds = float("-inf")
        self._latest: dict[int, float] = {}
        self._generation = 0
        self._is_supported = False

    def read(self) -> dict[int, float]:
        """Means since the last call by metric id; empty on the first call and without GPM.

        A call that comes too soon returns the same values again.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        self._gpu.ensure_handle()
        if self._generation != self._gpu.generation:
            self._probe()
        age_seconds = time.monotonic() - self._sampled_seconds
        if self._is_supported and age_seconds < _MIN_INTERVAL_SECONDS:
            return self._latest
        if not self._is_supported or not _LOCK.acquire(timeout=_LOCK_TIMEOUT_SECONDS):
            return {}  # another GPU hangs in GPM: a gap is better than to hang as well
        try:
            self._latest = self._read()
            return self._latest
        finally:
            _LOCK.release()

    def _probe(self) -> None:
        """Queries once a handle whether GPM is supported; drops the samples of older handles."""
        self._generation = self._gpu.generation
        self._older = self._spare = None
        self._sampled_seconds, self._latest = float("-inf"), {}
        support = self._gpu.query("nvmlGpmQueryDeviceSupport")
        self._is_supported = support is not None and bool(support.isSupportedDevice)

    def _read(self) -> dict[int, float]:
        nvml = self._gpu.nvml
        try:
            sample = self._spare or nvml.nvmlGpmSampleAlloc()
            self._spare = sample
            if self._instance is None:
                self._gpu.nvml.nvmlGpmSampleGet(self._gpu.handle, sample)
            else:
                self._gpu.nvml.nvmlGpmMigSampleGet(self._gpu.handle, self._instance, sample)
            self._sampled_seconds = time.monotonic()
        except nvml.NVMLError as error:
            self._gpu.raise_when_lost(error.value)
            self._is_supported = not self._gpu.is_unsupported(error.value)
            return {}
        older, self._older, self._spare = self._older, sample, self._older
        if older is None:
            return {}
        return self._compare(older, sample)

    def _compare(self, older: Any, newer: Any) -> dict[int, float]:
        nvml = self._gpu.nvml
        if self._request is None:
            self._request = self._build_request()
        self._request.sample1, self._request.sample2 = older, newer
        try:
            nvml.nvmlGpmMetricsGet(self._request)
        except nvml.NVMLError as error:
            self._gpu.raise_when_lost(error.value)
            return {}
        offset = type(self._request).metrics.offset
        answers = self._answers.unpack_from(self._request, offset)
        return {
            metric_id: value
            for metric_id, code, value in zip(
                self._metric_ids, answers[::2], answers[1::2], strict=True
            )
            if code == 0 and not math.isnan(value)
        }

    def _build_request(self) -> Any:
        # built once: pynvml's struct has 19,104 bytes, of which a dozen metrics are used
        request = self._gpu.nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._gpu.nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(self._metric_ids)
        for index, metric_id in enumerate(self._metric_ids):
            request.metrics[index].metricId = metric_id
        return request
