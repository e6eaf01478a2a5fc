"""The GPU driver of the node: opened, checked, closed again, with its library unloaded."""

import _ctypes
import contextlib
import ctypes
from pathlib import Path
from typing import Any

from lockstep_agent.sources.nvml.device import Gpu


class NoDriverError(RuntimeError):
    """No GPU driver answers; the text gives the reason."""


class Driver:
    """The driver of the node's GPUs, opened once.

    Args:
        library: the NVML library to load; None leaves it to the loader's own search.

    Attributes:
        version: version of the driver; None when it reports none.
        cuda: newest CUDA version that it serves, such as ``13.1``; None when it reports none.
        gpus: the GPUs in the order of their index.

    Raises:
        NoDriverError: no library, no driver, or no permission to use it.
    """

    def __init__(self, library: Path | None = None) -> None:
        import pynvml  # noqa: PLC0415  # loaded where a driver is opened, not for --help

        self._nvml: Any = pynvml
        pynvml.nvmlLib = None
        try:
            if library is not None:
                pynvml.nvmlLib = ctypes.CDLL(str(library))
            pynvml.nvmlInit()
        except (OSError, pynvml.NVMLError) as error:
            self._unload()
            raise NoDriverError(f"no GPU driver answers: {error}") from error
        try:
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self.close()
            raise NoDriverError(f"the GPU driver does not count its GPUs: {error}") from error
        self.version: str | None = self._query("nvmlSystemGetDriverVersion")
        cuda = self._query("nvmlSystemGetCudaDriverVersion_v2")
        self.cuda = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
        self.gpus = tuple(Gpu(pynvml, index) for index in range(count))

    def check(self) -> None:
        """Checks that the driver still answers with the number of GPUs it had when opened.

        Raises:
            NoDriverError: it does not; it must be closed and opened anew.
        """
        try:
            count = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            raise NoDriverError(f"the GPU driver no longer answers: {error}") from error
        if count != len(self.gpus):
            raise NoDriverError(f"the GPU driver has {count} GPUs and had {len(self.gpus)}")

    def close(self) -> None:
        """Closes the driver and unloads its library; no call may be in flight."""
        with contextlib.suppress(self._nvml.NVMLError):  # a driver that is gone needs no shutdown
            self._nvml.nvmlShutdown()
        self._unload()

    def _unload(self) -> None:
        """Unloads the library, so that the next start finds the library of a new driver."""
        library, self._nvml.nvmlLib = self._nvml.nvmlLib, None
        # pynvml caches the address of each function for good: after an upgrade they would dangle
        self._nvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001  # pynvml has no public way
        if library is not None:
            _ctypes.dlclose(library._handle)  # noqa: SLF001  # ctypes has no public way to unload

    def _query(self, call: str) -> Any:
        try:
            return getattr(self._nvml, call)()
        except self._nvml.NVMLError:
            return None
