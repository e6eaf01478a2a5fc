"""The event set of one GPU: the Xids that its driver tells to those who registered."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from lockstep_agent.sources.nvml.device import Gpu, GpuLostError
from lockstep_agent.sources.xid_event import XidEvent

_MOST_AT_ONCE = 100
_WAIT_MILLISECONDS = 1
_NO_INSTANCE = 0xFFFF_FFFF


class Events:
    """Registers once a handle; a GPU that is lost is heard to the end by its old set.

    What came before the registration is never told by the driver.

    Args:
        clock: wall clock, in seconds.
    """

    def __init__(self, gpu: Gpu, clock: Callable[[], float] = time.time) -> None:
        self._gpu, self._clock = gpu, clock
        self._set: Any = None
        self._generation = 0
        self._address = ""

    def read(self) -> list[XidEvent] | None:
        """Xids since the last call; None while the driver tells none."""
        heard = self._drain()
        try:
            _ = self._gpu.handle
            if self._generation != self._gpu.generation:
                self._register()
        except GpuLostError:  # who asks the GPU next says so
            pass
        return heard if self._set is not None else None

    def _drain(self) -> list[XidEvent]:
        heard: list[XidEvent] = []
        if self._set is None:
            return heard
        nvml = self._gpu.nvml
        with contextlib.suppress(nvml.NVMLError):  # a timeout: there are no more
            for _ in range(_MOST_AT_ONCE):
                data = nvml.nvmlEventSetWait_v2(self._set, _WAIT_MILLISECONDS)
                if data.eventType == nvml.nvmlEventTypeXidCriticalError:
                    heard.append(self._event(data))
        return heard

    def _event(self, data: Any) -> XidEvent:
        told = (data.gpuInstanceId, data.computeInstanceId)
        instances = tuple(one for one in told if one != _NO_INSTANCE)
        return XidEvent(self._address, int(data.eventData), instances, self._clock())

    def _register(self) -> None:
        """Replaces the set by one for the newest handle, where the driver has such events."""
        gpu, nvml = self._gpu, self._gpu.nvml
        if self._set is not None:
            with contextlib.suppress(nvml.NVMLError):  # gone already is as good
                nvml.nvmlEventSetFree(self._set)
            self._set = None
        kinds = gpu.ask("nvmlDeviceGetSupportedEventTypes") or 0
        info = gpu.ask("nvmlDeviceGetPciInfo_v3")
        self._generation = gpu.generation
        if info is None or not kinds & nvml.nvmlEventTypeXidCriticalError:
            return
        self._address = f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(gpu.handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            gpu.raise_when_lost(error.value)
            return
        self._set = events
