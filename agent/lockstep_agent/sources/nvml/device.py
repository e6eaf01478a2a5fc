"""One GPU of the driver: calls that are asked once where they are not supported."""

import ctypes
from collections import deque
from typing import Any

from lockstep_agent.collector import SourceLostError
from lockstep_agent.sources.nvml.mig import Instance, find_instance
from lockstep_agent.sources.xid_event import XidEvent

_LOST, _RESET, _SILENT = "lost", "reset_required", "silent"


class GpuLostError(SourceLostError):
    """The driver no longer answers for a GPU."""


class Gpu:
    """One GPU by its NVML index.

    Attributes:
        uuid: empty until the driver has told it once.
        model: product name, None until the driver has told it once.
        pids: processes that computed on it when they were last asked for.
        mig_uuids: UUIDs of its instances at that moment.
        xids: faults that the driver told as events and nobody took yet; None while it tells none.
        generation: rises with every handle; what was learnt of an older one may be wrong.
    """

    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml, self.index = nvml, index
        self.uuid = ""
        self.model: str | None = None
        self.generation = 0
        self.pids: tuple[int, ...] = ()
        self.mig_uuids: tuple[str, ...] = ()
        self.xids: deque[XidEvent] | None = None
        self._handle: Any = None
        self._unsupported: set[tuple[str, tuple[Any, ...]]] = set()

    @property
    def labels(self) -> tuple[str, str]:
        """Index and UUID, the labels of every series of this GPU."""
        return (str(self.index), self.uuid)

    @property
    def handle(self) -> Any:
        """The driver's handle, asked for anew after the GPU was lost.

        Raises:
            GpuLostError: there is none.
        """
        if self._handle is None:
            self._handle = self._find()
        return self._handle

    def ask(self, call: str, *arguments: Any) -> Any:
        """The answer of a call of pynvml, None without one; not supported is learnt once.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        return self._ask((call, arguments), arguments)

    def call(self, function: str, *arguments: Any) -> int:
        """The code that a function of the library returns, 0 when it answered.

        Args:
            function: its name.
            arguments: of C, after the handle; what they point at is filled.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        handle, library = self.handle, self.nvml.nvmlLib
        if library is None:
            code = self.nvml.NVML_ERROR_UNINITIALIZED
        elif not hasattr(library, function):
            code = self.nvml.NVML_ERROR_FUNCTION_NOT_FOUND
        else:
            code = getattr(library, function)(handle, *arguments)
        self.raise_when_lost(code)
        return int(code)

    def instances(self) -> list[Instance]:
        """The instances of a split GPU; none of one that is whole."""
        most = self.ask("nvmlDeviceGetMaxMigDeviceCount") or 0
        found = (find_instance(self.nvml, self.handle, index) for index in range(most))
        return [instance for instance in found if instance is not None]

    def fill(self, call: str, kind: str) -> Any:
        """A struct of pynvml of this kind, filled by a call; None without an answer.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        make = getattr(self.nvml, kind, None)
        if make is None:
            return None
        struct = make()
        asked = self._ask((call, (kind,)), (ctypes.byref(struct),))
        return None if asked is None else struct

    def _ask(self, key: tuple[str, tuple[Any, ...]], arguments: tuple[Any, ...]) -> Any:
        handle = self.handle
        if key in self._unsupported:
            return None
        try:
            return getattr(self.nvml, key[0])(handle, *arguments)
        except self.nvml.NVMLError as error:
            self.raise_when_lost(error.value)
            if self.is_unsupported(error.value):
                self._unsupported.add(key)
        except AttributeError:
            self._unsupported.add(key)  # an older pynvml does not know the call
        return None

    def _find(self) -> Any:
        try:
            self._handle = self.nvml.nvmlDeviceGetHandleByIndex(self.index)
        except self.nvml.NVMLError as error:
            self.raise_when_lost(error.value)
            raise GpuLostError(_LOST, f"GPU {self.index} has no handle: {error}") from error
        self.generation += 1
        self._unsupported.clear()
        self.uuid = self.ask("nvmlDeviceGetUUID") or self.uuid
        self.model = self.ask("nvmlDeviceGetName") or self.model
        return self._handle

    def silent(self) -> GpuLostError:
        """The error for a GPU that answers no call at all."""
        self._handle = None
        return GpuLostError(_SILENT, f"GPU {self.index} answers no call")

    def raise_when_lost(self, code: int) -> None:
        """Raises for the codes by which a driver says that a GPU is gone."""
        state = {
            self.nvml.NVML_ERROR_GPU_IS_LOST: _LOST,
            self.nvml.NVML_ERROR_RESET_REQUIRED: _RESET,
            self.nvml.NVML_ERROR_UNINITIALIZED: _LOST,
            self.nvml.NVML_ERROR_DRIVER_NOT_LOADED: _LOST,
        }.get(code)
        if state:
            self._handle = None
            raise GpuLostError(state, f"GPU {self.index}: {self.nvml.NVMLError(code)}")

    def is_unsupported(self, code: int) -> bool:
        """Whether a code means that asking again is no use."""
        return code in {
            self.nvml.NVML_ERROR_NOT_SUPPORTED,
            self.nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            self.nvml.NVML_ERROR_DEPRECATED,
            self.nvml.NVML_ERROR_INVALID_ARGUMENT,
            self.nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            self.nvml.NVML_ERROR_NO_PERMISSION,
        }
