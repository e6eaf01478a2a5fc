"""A node that is not there: a driver made of C that reads a file, and a /sys of files."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lockstep_records.file_access.atomic_file import write_atomically

_FILES = Path(__file__).parent / "node_files"
_STATISTICS = ("bytes", "packets", "errors", "dropped")
_SWITCH = "pci0000:{bus}/0000:{bus}:01.0/0000:{up}:00.0"
# Files of a port, of either end of a PCIe 5 link, and of a network interface.
_ADAPTER = json.loads((_FILES / "adapter.json").read_text(encoding="utf-8"))
State = dict[str, str | float]
_PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"


def read_gpu(model: str) -> State:
    """Answers of a GPU to the calls of NVML; a key for links 0-17 is one for each of them.

    The H100 is under load, the A100 is split into four instances, the T4 is in a narrow slot. No
    capture of a B200 is public: it is an H100 with the counters of Blackwell.
    """
    state: State = {}
    for key, value in json.loads((_FILES / "gpus.json").read_text(encoding="utf-8"))[model].items():
        begin, _, last = key.partition("-")
        stem, _, first = begin.rpartition(".")
        links = range(int(first), int(last) + 1) if last else ()
        state |= {f"{stem}.{link}": value for link in links} if last else {key: value}
    return state | ({f"{_PROCESSES}.pid": os.getpid()} if _PROCESSES in state else {})


h100, a100, t4, b200 = (partial(read_gpu, model) for model in ("h100", "a100", "t4", "b200"))


def build_nvml(folder: Path) -> Path:
    """The driver made of C, compiled by the system's compiler; or OSError or CalledProcessError."""
    library = folder / "libnvidia-ml.so.1"
    return build_library("nvml.c", library, f"-Wl,-soname,{library.name}", "-fvisibility=hidden")


def build_library(source: str, library: Path, *flags: str) -> Path:
    """A library of a source of this folder, as ``build_nvml``."""
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Werror",
        "-o",
        str(library),
        str(_FILES / source),
    ]
    subprocess.run([*command, *flags, "-lpthread"], check=True)
    return library


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


def unpack(listing: Path, folder: Path) -> Path:
    """Writes the files of a listing: a JSON object of contents by path, ``-> X`` for a link."""
    return write_all(folder, json.loads(listing.read_text(encoding="utf-8")))


def write_all(folder: Path, contents: Mapping[str, str | int]) -> Path:
    """Writes files below a folder by their paths."""
    for path, content in contents.items():
        write(folder / path.lstrip("/"), content)
    return folder


def write(path: Path, content: str | int) -> None:
    """Writes a file or, where the content begins with an arrow, a symbolic link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = str(content)
    if text.startswith("-> "):
        path.symlink_to(text[3:])
    else:
        path.write_text(text if text.endswith("\n") else text + "\n")


class Tree:
    """The /sys of a node with GPUs and adapters, four switches of two pairs each.

    Args:
        sysfs: the folder to fill.
        gpus: number of GPUs; GPU n shares a switch with adapter n.
        infiniband: number of InfiniBand adapters.
        ethernet: number of RoCE adapters.
    """

    def __init__(self, sysfs: Path, gpus: int = 8, infiniband: int = 8, ethernet: int = 2) -> None:
        self.sysfs = sysfs
        for index in range(gpus):
            self._write_pci(f"0000:{0x10 + index:02x}:00.0", index, "0x030200", "0x10de")
        for index in range(infiniband):
            self.write_adapter(f"mlx5_{index}", index, "InfiniBand", f"ib{index}")
        for index in range(ethernet):
            number = infiniband + index
            self.write_adapter(f"mlx5_{number}", number, "Ethernet", f"ens{index}np0")

    def port(self, device: str) -> Path:
        """The folder of the first port of an adapter."""
        return self.sysfs / "class" / "infiniband" / device / "ports" / "1"

    def write_adapter(self, device: str, index: int, layer: str, interface: str) -> None:
        """Writes one adapter with one port and its network interface."""
        home = self._write_pci(f"0000:{0x40 + index:02x}:00.0", index, "0x020700", "0x15b3")
        write(home / "sriov_numvfs", 0)
        write(home / "driver", "-> ../../../../../bus/pci/drivers/mlx5_core")
        adapter = home / "infiniband" / device
        for name, content in (("hca_type", "MT4129"), ("fw_ver", "28.39.1002"), ("board_id", "X")):
            write(adapter / name, content)
        write(adapter / "device", f"-> ../../../{home.name}")
        of_port = {"link_layer": layer, "gid_attrs/ndevs/0": interface}
        write_all(adapter / "ports" / "1", _ADAPTER["port"] | of_port)
        self._write_interface(home / "net" / interface, index, layer)
        for kind, name in (("infiniband", device), ("net", interface)):
            target = home.relative_to(self.sysfs) / kind / name
            write(self.sysfs / "class" / kind / name, f"-> ../../{target}")

    def _write_interface(self, folder: Path, index: int, layer: str) -> None:
        write_all(
            folder,
            _ADAPTER["interface"]
            | {f"statistics/{d}_{what}": 1000 * index for d in ("rx", "tx") for what in _STATISTICS}
            | {
                "type": 32 if layer == "InfiniBand" else 1,
                "device": f"-> ../../../{folder.parents[1].name}",
            },
        )
        if layer == "Ethernet":
            shutil.copy(_FILES / "ethtool-mlx5.txt", folder / "ethtool_statistics")

    def _write_pci(self, address: str, index: int, code: str, vendor: str) -> Path:
        """Writes a device below a switch, with its PCIe 5 link and its error counters."""
        pair = index // 2
        switch = _SWITCH.format(bus=f"{0xA0 + pair:02x}", up=f"{0xB0 + pair:02x}")
        below = f"0000:{0xC0 + pair:02x}:{int(address[5:7], 16) % 32:02x}.0"
        home = self.sysfs / "devices" / switch / below / address
        for folder in (home, home.parent):
            write_all(folder, _ADAPTER["pci"])
        write_all(home, {"class": code, "vendor": vendor, "numa_node": pair // 2})
        target = os.path.relpath(home, self.sysfs / "bus" / "pci" / "devices")
        write(self.sysfs / "bus" / "pci" / "devices" / address, f"-> {target}")
        return home
