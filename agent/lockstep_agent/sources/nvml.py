"""The GPU driver through NVML: plain readings, None where it does not tell; only here is pynvml."""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SM_CLOCK, _MEM_CLOCK = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_CORE_SENSOR = 0  # NVML_TEMPERATURE_GPU


class NoDriverError(RuntimeError):
    """There is no GPU driver that answers; the text says why."""


class GpuLostError(RuntimeError):
    """The driver no longer answers for a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuState:
    """What the driver tells of one GPU at one moment; None is unknown."""

    utilization_ratio: float | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    power_watts: float | None
    energy_joules: float | None
    temperature_celsius: float | None
    sm_clock_hertz: float | None
    mem_clock_hertz: float | None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


class Gpu:
    """One GPU by its NVML index.

    Attributes:
        uuid: empty until the driver has told it once.
        model: product name, None until the driver has told it once.
    """

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml, self.index = nvml, index
        self.uuid, self.model = "", None
        self._handle: Any = None
        self._unsupported: set[tuple[str, tuple[int, ...]]] = set()

    def read(self) -> GpuState:
        """The state now.

        Raises:
            GpuLostError: the GPU is lost, needs a reset, or answers no call at all.
        """
        try:
            state = self._read()
        except GpuLostError:
            self._handle = None
            raise
        if all(getattr(state, name) is None for name in GpuState.__slots__):
            raise GpuLostError(f"GPU {self.index} answers no call")
        return state

    def _read(self) -> GpuState:
        if self._handle is None:
            self._find()
        load = self._ask("nvmlDeviceGetUtilizationRates")
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        temperature = self._ask("nvmlDeviceGetTemperatureV", _CORE_SENSOR)
        if temperature is None:
            temperature = self._ask("nvmlDeviceGetTemperature", _CORE_SENSOR)
        return GpuState(
            utilization_ratio=load and load.gpu / 100,
            memory_total_bytes=memory and memory.total,
            memory_used_bytes=memory and memory.used,
            power_watts=_scaled(self._ask("nvmlDeviceGetPowerUsage"), 1e-3),
            energy_joules=_scaled(self._ask("nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
            temperature_celsius=temperature,
            sm_clock_hertz=_scaled(self._ask("nvmlDeviceGetClockInfo", _SM_CLOCK), 1e6),
            mem_clock_hertz=_scaled(self._ask("nvmlDeviceGetClockInfo", _MEM_CLOCK), 1e6),
        )

    def _find(self) -> None:
        try:
            self._handle = self._nvml.nvmlDeviceGetHandleByIndex(self.index)
        except self._nvml.NVMLError as error:
            raise GpuLostError(f"GPU {self.index} has no handle: {error}") from error
        self.uuid = self._ask("nvmlDeviceGetUUID") or self.uuid
        self.model = self._ask("nvmlDeviceGetName") or self.model

    def _ask(self, call: str, *arguments: int) -> Any:
        """The answer of a call, None without one; a call that is not supported is asked once."""
        if (call, arguments) in self._unsupported:
            return None
        try:
            return getattr(self._nvml, call)(self._handle, *arguments)
        except self._nvml.NVMLError as error:
            code = error.value
            if code in {self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED}:
                raise GpuLostError(f"GPU {self.index} is lost: {error}") from error
            if code in {
                self._nvml.NVML_ERROR_NOT_SUPPORTED,
                self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                self._nvml.NVML_ERROR_DEPRECATED,
            }:
                self._unsupported.add((call, arguments))
            return None


class Driver:
    """The driver of the node's GPUs, opened once.

    Args:
        library: the NVML library to load; None leaves it to the loader's own search.

    Attributes:
        version: version of the driver, None when it does not tell.

    Raises:
        NoDriverError: no library, no driver, or no right to use it.
    """

    def __init__(self, library: Path | None = None) -> None:
        import pynvml  # noqa: PLC0415  # loaded where a driver is looked for, not for --help

        try:
            if library is not None:
                pynvml.nvmlLib = ctypes.CDLL(str(library))
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except (OSError, pynvml.NVMLError) as error:
            raise NoDriverError(f"no GPU driver answers: {error}") from error
        self.version = self._version(pynvml)
        self.gpus = tuple(Gpu(pynvml, index) for index in range(count))

    @staticmethod
    def _version(nvml: Any) -> str | None:
        try:
            return str(nvml.nvmlSystemGetDriverVersion())
        except nvml.NVMLError:
            return None
