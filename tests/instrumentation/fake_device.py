"""A GPU of a C stub of CUDA's runtime, which the recorder calls; tests move its streams on."""

import ctypes
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.recorder.device import Device, NumberMemory

_SOURCE = Path(__file__).parents[1] / "fixtures" / "cuda-stub" / "cudart.c"
_FUNCTIONS = (
    "EventCreateWithFlags", "EventDestroy", "EventRecord", "EventQuery", "EventElapsedTime",
    "StreamIsCapturing", "StreamQuery", "MemcpyAsync", "GetLastError",
)  # fmt: skip
UNBOUNDED_NS = 10**12  # an allowance with which every step is timed
_ROWS = 64


@cache
def stub() -> ctypes.CDLL:
    """The stub, compiled once a process."""
    library = Path(tempfile.mkdtemp()) / "libcudart.so.stub"
    command = ["cc", "-O1", "-fPIC", "-shared", "-o", str(library), str(_SOURCE)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def calls() -> dict[str, int]:
    """Calls of the runtime since the process began, by function."""
    counts = (ctypes.c_long * len(_FUNCTIONS)).in_dll(stub(), "stub_calls")
    return dict(zip(_FUNCTIONS, counts, strict=True))


def last_error() -> int:
    """The error that torch would find after its next launch."""
    return ctypes.c_int.in_dll(stub(), "stub_last_error").value


def fail_from_now(patch: pytest.MonkeyPatch) -> None:
    """Every call answers as after an illegal access, until the test ends."""
    patch.setattr(ctypes.c_int.in_dll(stub(), "stub_error"), "value", 700)


class FakeStream(ctypes.Structure):
    """A stream: ``now_ms`` is where its work ends, ``passed_ms`` how far it has come.

    One that ``keeps_up`` idles until the host gives it something, by the host's clock.
    """

    _fields_ = (
        ("now_ms", ctypes.c_double),
        ("passed_ms", ctypes.c_double),
        ("is_capturing", ctypes.c_long),
        ("num_events", ctypes.c_long),
        ("keeps_up", ctypes.c_long),
    )
    now_ms: float
    passed_ms: float
    is_capturing: bool
    num_events: int
    keeps_up: bool

    def __init__(self) -> None:
        super().__init__(time.monotonic_ns() * 1e-6, -1.0)

    @property
    def handle(self) -> int:
        """What torch calls the raw stream."""
        return ctypes.addressof(self)

    def work(self, milliseconds: float) -> None:
        """A kernel of that duration is launched."""
        self.now_ms += milliseconds


class OnDevice(torch.Tensor):
    """A number that claims to be on the GPU."""

    is_cuda = True

    def get_device(self) -> int:
        return 0


def fake_device(stream: FakeStream, *, allowance_ns: int = UNBOUNDED_NS, **changes: Any) -> Device:
    """A device with that stream alone; its memory is the host's."""
    on_device, on_host = torch.zeros((_ROWS, 3, 8)), torch.zeros((_ROWS, 3, 8))
    memory = NumberMemory(
        device_address=on_device.data_ptr(),
        host_address=on_host.data_ptr(),
        rows=_ROWS,
        types=frozenset({OnDevice}),
        formats={torch.float32: 1, torch.float64: 2, torch.float16: 3, torch.bfloat16: 4},
        owners=(on_device, on_host),
    )
    parts: dict[str, Any] = {
        "library": stub()._name,
        "prefix": "cuda",
        "index": 0,
        "current_device": lambda: 0,
        "current_stream": lambda _device: stream.handle,
        "memory": memory,
        "allowance_ns": allowance_ns,
    }
    return Device(**(parts | changes))
