"""A node whose GPUs come from captures: the state file of the driver stub in C."""

import json
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lockstep_records.file_access.atomic_file import write_atomically

GPUS = Path(__file__).parent.parent / "fixtures" / "nvml-stub" / "gpus.json"
State = dict[str, str | float]
_PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"


def read_gpu(model: str) -> State:
    """Answers of a GPU to the calls of NVML; a key for links 0-17 is one for each of them.

    The H100 is under load, the A100 is split into four instances, the T4 is in a narrow slot. No
    capture of a B200 is public: it is an H100 with the counters of Blackwell.
    """
    state: State = {}
    for key, value in json.loads(GPUS.read_text(encoding="utf-8"))[model].items():
        begin, _, last = key.partition("-")
        stem, _, first = begin.rpartition(".")
        links = range(int(first), int(last) + 1) if last else ()
        state |= {f"{stem}.{link}": value for link in links} if last else {key: value}
    return state | ({f"{_PROCESSES}.pid": os.getpid()} if _PROCESSES in state else {})


h100, a100, t4, b200 = (partial(read_gpu, model) for model in ("h100", "a100", "t4", "b200"))


@dataclass
class FakeNode:
    """The GPUs of a node, in the stub's state file; its next call sees every change."""

    path: Path
    gpus: list[State]
    node: State = field(default_factory=dict)
    instances: dict[int, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, gpu in enumerate(self.gpus):
            gpu["nvmlDeviceGetUUID"] = f"GPU-00000000-0000-0000-0000-{index:012d}"
            gpu["nvmlDeviceGetPciInfo_v3"] = f"00000000:{index + 16:02X}:00.0"
            gpu["nvmlDeviceGetMinorNumber"] = index
            for slot in range(int(gpu.get("instances", 0))):
                self.instances[1000 * (slot + 1) + index] = read_gpu("instance") | {
                    "nvmlDeviceGetUUID": f"MIG-00000000-0000-0000-{index:04d}-{slot:012d}",
                    "nvmlDeviceGetGpuInstanceId": slot + 3,
                }
        self.node = {
            "nvmlSystemGetDriverVersion": "590.48.01",
            "nvmlSystemGetCudaDriverVersion_v2": 13010,
            "count": len(self.gpus),
            **self.node,
        }
        self.write()

    def change(self, gpu: int, **values: str | float | None) -> None:
        """Sets keys of a GPU, dots written as two underscores; None removes a key."""
        for name, value in values.items():
            self.set(gpu, name.replace("__", "."), value)

    def set(self, gpu: int, key: str, value: str | float | None) -> None:
        """Sets one key of a GPU, or of the node (-1), and writes the file; None removes the key."""
        state = self.node if gpu < 0 else self.gpus[gpu]
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
        self.write()

    def write(self) -> None:
        """Replaces the file atomically, so that no call reads half of it."""
        states = {-1: self.node, **dict(enumerate(self.gpus)), **self.instances}
        lines = [
            f"{gpu} {key} {value}\n"
            for gpu, state in states.items()
            for key, value in state.items()
        ]
        write_atomically(self.path, "".join(lines))
