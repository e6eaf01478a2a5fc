"""The GPU driver as a whole: opened, checked, closed again, with its library let go."""

import _ctypes
import contextlib
import ctypes
from pathlib import Path
from typing import Any

from lockstep_agent.sources.nvml.device import Gpu


class NoDriverError(RuntimeError):
    """There is no GPU driver that answers; the text says why."""


class Driver:
    """The driver of the node's GPUs, opened once.

    Args:
        library: the NVML library to load; None leaves it to the loader's own search.

    Attributes:
        version: version of the driver, None when it does not tell.
        cuda: newest CUDA version that it serves, such as ``13.1``; None when it does not tell.

    Raises:
        NoDriverError: no library, no driver, or no right to use it.
    """

    def __init__(self, library: Path | None = None) -> None:
        import pynvml  # noqa: PLC0415  # loaded where a driver is looked for, not for --help

        self._nvml: Any = pynvml
        pynvml.nvmlLib = None
        try:
            if library is not None:
                pynvml.nvmlLib = ctypes.CDLL(str(library))
            pynvml.nvmlInit()
        except (OSError, pynvml.NVMLError) as error:
            self._forget()
            raise NoDriverError(f"no GPU driver answers: {error}") from error
        try:
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self.close()
            raise NoDriverError(f"the GPU driver does not count its GPUs: {error}") from error
        self.version: str | None = self._ask("nvmlSystemGetDriverVersion")
        cuda = self._ask("nvmlSystemGetCudaDriverVersion_v2")
        self.cuda = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
        self.gpus = tuple(Gpu(pynvml, index) for index in range(count))

    def check(self) -> None:
        """Asks whether the driver still answers as when it was opened.

        Raises:
            NoDriverError: it does not; it must be closed and opened anew.
        """
        try:
            count = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            raise NoDriverError(f"the GPU driver answers no more: {error}") from error
        if count != len(self.gpus):
            raise NoDriverError(f"the GPU driver has {count} GPUs and had {len(self.gpus)}")

    def close(self) -> None:
        """Lets go of the driver and of its library; no call may be under way."""
        with contextlib.suppress(self._nvml.NVMLError):  # gone already is as good
            self._nvml.nvmlShutdown()
        self._forget()

    def _forget(self) -> None:
        """Unloads the library, so that a new driver's is found when it is opened again."""
        library, self._nvml.nvmlLib = self._nvml.nvmlLib, None
        self._nvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001  # pynvml forgets nothing itself
        if library is not None:
            _ctypes.dlclose(library._handle)  # noqa: SLF001  # ctypes has no public way to unload

    def _ask(self, call: str) -> Any:
        try:
            return getattr(self._nvml, call)()
        except self._nvml.NVMLError:
            return None
