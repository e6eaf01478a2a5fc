"""The GPU driver of the node, its GPUs and their MIG instances."""

import _ctypes
import contextlib
import ctypes
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep_agent.collector import SourceLostError

_LOST, _RESET, _SILENT = "lost", "reset_required", "silent"


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One event.

    Attributes:
        address: PCI address of the GPU as /sys writes it.
        instances: numbers of the GPU instance and the compute instance, where the event has them.
        wall_seconds: wall clock at which the agent received the event.
    """

    address: str
    number: int
    instances: tuple[int, ...]
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One MIG device.

    Attributes:
        gpu_instance: number of the GPU instance that it belongs to.
        name: GPU instance, slash, compute instance.
    """

    nvml: Any
    handle: Any
    gpu_instance: int
    name: str
    uuid: str

    def memory(self) -> Any:
        """Memory in bytes, as ``total`` and ``used``; None without an answer."""
        # only the call's first form: the second (MemoryInfo_v2) has no data on MIG handles
        try:
            return self.nvml.nvmlDeviceGetMemoryInfo(self.handle)
        except self.nvml.NVMLError:
            return None

    def pids(self) -> tuple[int, ...]:
        """Processes that compute on it; empty without an answer."""
        try:
            processes = self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(self.handle)
        except self.nvml.NVMLError:
            return ()
        return tuple(process.pid for process in processes)


def find_instance(nvml: Any, gpu: Any, index: int) -> MigInstance | None:
    """The instance at an index of a GPU's handle; None for an empty slot."""
    try:
        handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        instance = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
        name = f"{instance}/{int(nvml.nvmlDeviceGetComputeInstanceId(handle))}"
        return MigInstance(nvml, handle, instance, name, str(nvml.nvmlDeviceGetUUID(handle)))
    except nvml.NVMLError:
        return None


class GpuLostError(SourceLostError):
    """The driver no longer answers for a GPU."""


class Gpu:
    """One GPU by its NVML index.

    Attributes:
        uuid: empty until the driver has reported it.
        model: product name; None until the driver has reported it.
        address: PCI address as /sys writes it; empty until the driver has reported it.
        pids: compute processes on the GPU at the last query.
        mig_uuids: UUIDs of its MIG instances at the last query.
        xids: Xid events that no collector has taken yet; None while the driver reports no events.
        generation: rises with every handle; whatever was learnt under an older one may be wrong.
    """

    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml, self.index = nvml, index
        self.uuid = ""
        self.model: str | None = None
        self.address = ""
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
        """The driver's handle, opened anew after the GPU was lost.

        Raises:
            GpuLostError: the driver gives no handle.
        """
        if self._handle is None:
            self._handle = self._open_handle()
        return self._handle

    def ensure_handle(self) -> None:
        """Opens the handle where there is none, so that ``generation`` is up to date.

        Raises:
            GpuLostError: the driver gives no handle.
        """
        _ = self.handle

    def query(self, call: str, *arguments: Any) -> Any:
        """The result of a call of pynvml, None without one; an unsupported call is not repeated.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        return self._query((call, arguments), arguments)

    def call(self, function: str, *arguments: Any) -> int:
        """The return code of a function of the C library, 0 for success.

        Args:
            function: its name.
            arguments: C arguments after the handle; the function fills what they point at.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        # ctypes releases the GIL during the call: a GPU that hangs blocks only its own thread
        handle, library = self.handle, self.nvml.nvmlLib
        if library is None:
            code = self.nvml.NVML_ERROR_UNINITIALIZED
        elif not hasattr(library, function):
            code = self.nvml.NVML_ERROR_FUNCTION_NOT_FOUND
        else:
            code = getattr(library, function)(handle, *arguments)
        self.raise_when_lost(code)
        return int(code)

    def instances(self) -> list[MigInstance]:
        """The MIG instances of a split GPU; empty for a GPU that is not split."""
        max_instances = self.query("nvmlDeviceGetMaxMigDeviceCount") or 0
        candidates = (
            find_instance(self.nvml, self.handle, index) for index in range(max_instances)
        )
        return [instance for instance in candidates if instance is not None]

    def query_struct(self, call: str, struct_name: str) -> Any:
        """A struct of pynvml, filled by a call; None without an answer.

        Args:
            call: function of pynvml that takes a handle and a pointer to the struct.
            struct_name: class of the struct in pynvml.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        struct_class = getattr(self.nvml, struct_name, None)
        if struct_class is None:
            return None
        struct = struct_class()
        answer = self._query((call, (struct_name,)), (ctypes.byref(struct),))
        return None if answer is None else struct

    def _query(self, key: tuple[str, tuple[Any, ...]], arguments: tuple[Any, ...]) -> Any:
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
            self._unsupported.add(key)  # an older pynvml does not have the call
        return None

    def _open_handle(self) -> Any:
        try:
            self._handle = self.nvml.nvmlDeviceGetHandleByIndex(self.index)
        except self.nvml.NVMLError as error:
            self.raise_when_lost(error.value)
            raise GpuLostError(_LOST, f"GPU {self.index} has no handle: {error}") from error
        self.generation += 1
        # a new handle can mean a new driver or a reset GPU, which may support other calls
        self._unsupported.clear()
        self.uuid = self.query("nvmlDeviceGetUUID") or self.uuid
        self.model = self.query("nvmlDeviceGetName") or self.model
        self.address = self._query_address() or self.address
        return self._handle

    def _query_address(self) -> str:
        # NVML writes eight digits of domain, /sys and the kernel log four
        info = self.query("nvmlDeviceGetPciInfo_v3")
        return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0" if info else ""

    def drop_silent_handle(self) -> GpuLostError:
        """Drops the handle of a GPU that answers no call; returns the error to raise for it."""
        self._handle = None
        return GpuLostError(_SILENT, f"GPU {self.index} answers no call")

    def raise_when_lost(self, code: int) -> None:
        """Drops the handle and raises for the codes of a GPU that is gone.

        Raises:
            GpuLostError: the code says that the GPU is lost or needs a reset.
        """
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
        """Whether a code means that a repeated call would fail too."""
        # one build runs on drivers 450 to 620, which lack different calls and reject them by any
        # of these codes; driver 590 answers DEPRECATED for the application clocks
        return code in {
            self.nvml.NVML_ERROR_NOT_SUPPORTED,
            self.nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            self.nvml.NVML_ERROR_DEPRECATED,
            self.nvml.NVML_ERROR_INVALID_ARGUMENT,
            self.nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            self.nvml.NVML_ERROR_NO_PERMISSION,
        }


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
