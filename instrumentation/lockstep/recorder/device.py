"""The GPU of a process as the recorder in C calls it: the runtime's library, and torch's streams.

CUDA and HIP have the same functions under another prefix; torch calls both ``torch.cuda``. On
another kind of device rows are the host's.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ALLOWANCE_NS = 20_000
"""Host time a step that calls of the device may take; a long step's is a thousandth of it."""
_ROWS = 1024  # steps whose numbers may be under way
_NUMBERS, _NUMBER_BYTES = 3, 8
_PREFIXES = {"libcudart.so": "cuda", "libamdhip64.so": "hip"}
_FORMATS = {"float32": 1, "float64": 2, "float16": 3, "bfloat16": 4}  # of device_numbers.c


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberMemory:
    """Memory for numbers on their way from a device: [rows, 3] of eight bytes, there and here.

    Attributes:
        device_address: where the device gathers losses, gradient norms and learning rates.
        host_address: pinned memory of the same size.
        types: exact types of values that are read; others might start a collective.
        formats: what the C code calls their ``dtype``.
        owners: keep the memory.
    """

    device_address: int
    host_address: int
    rows: int
    types: frozenset[type]
    formats: Mapping[Any, int]
    owners: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What the recorder calls of a device; none of it waits.

    Attributes:
        library: the runtime's library, which the process has loaded.
        prefix: of the runtime's functions, ``cuda`` or ``hip``.
        index: the device that the loop uses.
        current_device: index of the one that the calling thread uses now.
        current_stream: raw handle of the stream of a device that takes the thread's work.
        memory: for the loop's numbers; None where they are not read.
        allowance_ns: host time a step that calls of the runtime may take, on average.
    """

    library: str
    prefix: str
    index: int
    current_device: Callable[[], int]
    current_stream: Callable[[int], int]
    memory: NumberMemory | None = None
    allowance_ns: int = ALLOWANCE_NS


class LateNumbers(NamedTuple):
    """Numbers of a step, read after it; None for what was not a number on the device."""

    step: int
    loss: float | None
    gradient_norm: float | None
    learning_rate: float | None


LateRow = tuple[int, float | None, float | None, float | None]


def is_in_use() -> bool:
    """Whether the process uses a GPU by now; asking the driver could start it."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def loaded_runtime(maps: Path = Path("/proc/self/maps")) -> tuple[str, str]:
    """Path of the runtime's library in this process, and its functions' prefix; or OSError."""
    for line in maps.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        for name, prefix in _PREFIXES.items():
            if Path(path).name.startswith(name):
                return path, prefix
    raise OSError(f"the process has loaded none of {', '.join(_PREFIXES)}")


def find_device() -> Device | None:
    """The GPU of this process, None while it uses none; OSError where it cannot be called."""
    if not is_in_use():
        return None
    torch = sys.modules["torch"]
    library, prefix = loaded_runtime()
    index = torch.cuda.current_device()
    on_device = torch.zeros((_ROWS, _NUMBERS), dtype=torch.float64, device=f"cuda:{index}")
    on_host = torch.zeros((_ROWS, _NUMBERS), dtype=torch.float64, pin_memory=True)
    assert on_host.element_size() == _NUMBER_BYTES
    return Device(
        library=library,
        prefix=prefix,
        index=index,
        current_device=torch._C._cuda_getDevice,  # noqa: SLF001  # no public one without a frame
        current_stream=torch._C._cuda_getCurrentRawStream,  # noqa: SLF001  # the same
        memory=NumberMemory(
            device_address=on_device.data_ptr(),
            host_address=on_host.data_ptr(),
            rows=_ROWS,
            types=frozenset({torch.Tensor, torch.nn.Parameter}),
            formats={getattr(torch, name): code for name, code in _FORMATS.items()},
            owners=(on_device, on_host),
        ),
    )
