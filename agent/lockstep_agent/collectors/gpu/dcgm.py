"""Profiling fields by libdcgm, under the names that GPM has on newer GPUs."""

import logging
import time
from collections.abc import Callable, Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.collectors.gpu.dcgm_exporter import is_blank
from lockstep_agent.sources.dcgm import Dcgm, NoDcgmError
from lockstep_catalogue import Metric, gpu

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 60.0
_MAX_AGE_SECONDS = 10.0  # a paused profiling module keeps serving its last values

# DCGM_FI_PROF_ fields, the most important first: not every GPU can measure all at once
FIELDS: dict[int, tuple[Metric, tuple[str, ...]]] = {
    1002: (gpu.GPU_SM_ACTIVE, ()),
    1004: (gpu.GPU_TENSOR_ACTIVE, ("any",)),
    1005: (gpu.GPU_DRAM_ACTIVE, ()),
    1001: (gpu.GPU_GRAPHICS_ACTIVE, ()),
    1003: (gpu.GPU_SM_OCCUPANCY, ()),
    1011: (gpu.NVLINK_RATE, ("transmit",)),
    1012: (gpu.NVLINK_RATE, ("receive",)),
    1009: (gpu.GPU_PCIE_RATE, ("transmit",)),
    1010: (gpu.GPU_PCIE_RATE, ("receive",)),
    1014: (gpu.GPU_TENSOR_ACTIVE, ("hmma",)),
    1013: (gpu.GPU_TENSOR_ACTIVE, ("imma",)),
    1015: (gpu.GPU_TENSOR_ACTIVE, ("dfma",)),
}


class DcgmProfiling:
    """Reads the engine's values; a series that the driver reports too is the driver's.

    Without the library or its engine the series are absent, which is logged once.

    Args:
        connect: opens the library; raises NoDcgmError where there is none.
        is_released: whether the driver is released; the library must be released with it.
        clock: wall clock, in seconds.
    """

    name = "dcgm"
    tier = Tier.EVERY_TICK

    def __init__(
        self,
        connect: Callable[[], Dcgm],
        is_released: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._connect, self._is_released, self._clock = connect, is_released, clock
        self._dcgm: Dcgm | None = None
        self._next_attempt_seconds = 0.0
        self._logged_reason = ""

    def collect(self) -> Iterator[Reading]:
        """The fresh values in base units."""
        if self._is_released():
            self._close()
            self._next_attempt_seconds = 0.0
            return
        dcgm = self._open()
        if dcgm is None:
            return
        try:
            samples = list(dcgm.read())
        except NoDcgmError as error:
            self._lose(str(error))
            return
        now = self._clock()
        # no factors: DCGM's profiling ratios are 0 to 1 already, its rates bytes per second
        for sample in samples:
            metric, extra_labels = FIELDS[sample.field]
            if not is_blank(sample.value) and now - sample.wall_seconds <= _MAX_AGE_SECONDS:
                labels = (str(sample.index), sample.uuid, *extra_labels)
                yield Reading(metric, labels, sample.value)

    def _open(self) -> Dcgm | None:
        if self._dcgm is None and self._clock() >= self._next_attempt_seconds:
            try:
                self._dcgm = self._connect()
            except NoDcgmError as error:
                self._lose(str(error))
            else:
                left_out = sorted(set(FIELDS) - set(self._dcgm.watched))
                _log.info("collector=dcgm state=open left_out=%s", left_out)
                self._logged_reason = ""
        return self._dcgm

    def _lose(self, reason: str) -> None:
        self._close()
        self._next_attempt_seconds = self._clock() + _RETRY_SECONDS
        if reason != self._logged_reason:
            _log.warning("collector=dcgm state=absent reason=%r", reason)
        self._logged_reason = reason

    def _close(self) -> None:
        if self._dcgm is not None:
            self._dcgm.close()
            self._dcgm = None
