"""The event set of one GPU: the Xids that its driver reports to registered listeners."""

import contextlib
import time
from typing import Any

from lockstep_agent.sources.nvml.device import Gpu, GpuLostError, XidEvent

_MAX_EVENTS = 100
_WAIT_MILLISECONDS = 1
_NO_INSTANCE = 0xFFFF_FFFF  # the driver's value for a GPU that is not split


class Events:
    """Registers once a handle; the old set of a lost GPU is drained before it is replaced.

    The driver never reports an Xid from before the registration.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._set: Any = None
        self._generation = 0
        self._address = ""

    def read(self) -> list[XidEvent] | None:
        """Xids since the last call; None while the driver reports no events."""
        # drained first: the Xid that explains a lost GPU waits in the set of its old handle
        events = self._drain()
        try:
            self._gpu.ensure_handle()
            if self._generation != self._gpu.generation:
                self._register()
        except GpuLostError:  # the next collector that queries the GPU reports it
            pass
        return events if self._set is not None else None

    def _drain(self) -> list[XidEvent]:
        events: list[XidEvent] = []
        if self._set is None:
            return events
        nvml = self._gpu.nvml
        with contextlib.suppress(nvml.NVMLError):  # a timeout: the set is empty
            for _ in range(_MAX_EVENTS):
                data = nvml.nvmlEventSetWait_v2(self._set, _WAIT_MILLISECONDS)
                if data.eventType == nvml.nvmlEventTypeXidCriticalError:
                    events.append(self._build_event(data))
        return events

    def _build_event(self, data: Any) -> XidEvent:
        ids = (data.gpuInstanceId, data.computeInstanceId)
        instances = tuple(number for number in ids if number != _NO_INSTANCE)
        return XidEvent(self._address, int(data.eventData), instances, time.time())

    def _register(self) -> None:
        """Replaces the set by one for the newest handle, where the driver has Xid events."""
        gpu, nvml = self._gpu, self._gpu.nvml
        if self._set is not None:
            with contextlib.suppress(nvml.NVMLError):  # a set of a lost driver is freed already
                nvml.nvmlEventSetFree(self._set)
            self._set = None
        kinds = gpu.query("nvmlDeviceGetSupportedEventTypes") or 0
        self._generation = gpu.generation
        if not gpu.address or not kinds & nvml.nvmlEventTypeXidCriticalError:
            return
        self._address = gpu.address
        try:
            event_set = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(gpu.handle, nvml.nvmlEventTypeXidCriticalError, event_set)
        except nvml.NVMLError as error:
            gpu.raise_when_lost(error.value)
            return
        self._set = event_set
