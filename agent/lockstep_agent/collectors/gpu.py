"""The GPUs of the node as their driver tells; a node without a driver is served without."""

import logging
import time
from collections.abc import Callable, Iterator

from lockstep_agent.collector import Reading
from lockstep_agent.sources.nvml import Driver, Gpu, GpuLostError, GpuState, NoDriverError
from lockstep_catalogue import gpu as metrics

_log = logging.getLogger(__name__)
_LOOK_AGAIN_SECONDS = 60.0


class Gpus:
    """Reads every GPU; where there is no driver, looks for one again once a minute."""

    name = "gpu"

    def __init__(
        self, open_driver: Callable[[], Driver], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open_driver, self._clock = open_driver, clock
        self._driver: Driver | None = None
        self._next_look_seconds = clock()
        self._said = False

    def collect(self) -> Iterator[Reading]:
        """Identity and state of each GPU."""
        driver = self._find_driver()
        if driver is None:
            return
        if driver.version:
            yield Reading(metrics.GPU_DRIVER_INFO, (driver.version,), 1)
        for gpu in driver.gpus:
            yield from _readings(gpu)

    def _find_driver(self) -> Driver | None:
        if self._driver is None and self._clock() >= self._next_look_seconds:
            self._next_look_seconds = self._clock() + _LOOK_AGAIN_SECONDS
            try:
                self._driver = self._open_driver()
            except NoDriverError as error:
                if not self._said:
                    _log.warning("collector=gpu state=absent reason=%r", str(error))
                self._said = True
        return self._driver


def _readings(gpu: Gpu) -> Iterator[Reading]:
    try:
        state = gpu.read()
    except GpuLostError:
        state = None
    labels = (str(gpu.index), gpu.uuid)
    yield Reading(metrics.GPU_UP, labels, 0 if state is None else 1)
    if gpu.model:
        yield Reading(metrics.GPU_INFO, (*labels, gpu.model), 1)
    if state is not None:
        yield from _of_state(labels, state)


def _of_state(labels: tuple[str, str], state: GpuState) -> Iterator[Reading]:
    told = (
        (metrics.GPU_UTILIZATION, (), state.utilization_ratio),
        (metrics.GPU_MEMORY_TOTAL, (), state.memory_total_bytes),
        (metrics.GPU_MEMORY_USED, (), state.memory_used_bytes),
        (metrics.GPU_POWER, (), state.power_watts),
        (metrics.GPU_ENERGY, (), state.energy_joules),
        (metrics.GPU_TEMPERATURE, (), state.temperature_celsius),
        (metrics.GPU_CLOCK, ("sm",), state.sm_clock_hertz),
        (metrics.GPU_CLOCK, ("mem",), state.mem_clock_hertz),
    )
    for metric, more, value in told:
        if value is not None:
            yield Reading(metric, (*labels, *more), value)
