"""A node whose GPUs come from captures: the state file of the driver stub in C."""

import gzip
import os
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

from lockstep_records.file_access.atomic_file import write_atomically

from .fake_names import ECC_LOCATIONS, H100_SYSTEM, KEY_BY_XML_PATH, MIB, smi_number

CAPTURES = Path(__file__).parent.parent / "fixtures" / "nvidia-smi"
ALL_LINKS = 0xFFFF_FFFF
State = dict[str, str | float]
_OWN_PROCESS: State = {
    "nvmlDeviceGetComputeRunningProcesses_v3": 1,
    "nvmlDeviceGetComputeRunningProcesses_v3.pid": os.getpid(),
}


def h100() -> State:
    """An H100 under load, from the text of ``nvidia-smi -q``; missing values are made up."""
    [path] = CAPTURES.glob("*h100*.txt.gz")
    text = gzip.decompress(path.read_bytes()).decode()
    query = text.partition("# load :: query (-q)")[2].partition("# load :: query-gpu")[0]
    smi = dict(re.findall(r"^ {4,}(\w[\w .()-]*?) +: (.+)$", query, re.MULTILINE)[::-1])
    state = _shared(smi["Product Name"], architecture=9)
    state |= _memory(81559, 479, 19818) | _hopper_fields() | _links(18, 26562)
    state |= {
        "nvmlDeviceGetUtilizationRates.gpu": 97,
        "nvmlDeviceGetUtilizationRates.memory": 11,
        "field.185.0": smi_number(smi["Average Power Draw"]) * 1000 or 629450,
        "field.186.0": 588390,
        "field.185.2": 85830,
        "nvmlDeviceGetMarginTemperature": smi_number(smi["GPU T.Limit Temp"]),
        "nvmlDeviceGetVbiosVersion": smi["VBIOS Version"],
        "nvmlDeviceGetTemperatureV": 59,
        "field.82.0": 55,
        "nvmlDeviceGetPcieReplayCounter": 9,
    }
    return state | H100_SYSTEM


def b200() -> State:
    """A B200: no capture is public, so it is an H100 with the counters of Blackwell."""
    state = h100()
    state |= {"nvmlDeviceGetName": "NVIDIA B200", "nvmlDeviceGetArchitecture": 10}
    state |= _memory(183359, 700, 150000) | _links(18, 50000)
    state = {key: value for key, value in state.items() if not _is_hopper_link_error(key)}
    for link in range(18):
        state |= {f"field.{number}.{link}": 0 for number in (*range(206, 216), 219, 221)}
        state |= {f"field.{number}.{link}": 0x1FF for number in (220, 222, 293)}  # 1e-255
    state |= {
        "field.186.1": 1_400_000,
        "field.215.7": 3,
        "field.214.7": 1,
        "field.220.7": 0x50C,
        "field.221.7": 42,
    }
    return state


def a100() -> State:
    """An A100 split into four instances, from ``nvidia-smi -q -x``."""
    state = _from_xml("a100-sxm4-v12.xml", architecture=7)
    state |= _links(12, 25000)
    for number in (138, 139, 161, 162, 163):
        state = {
            key: value for key, value in state.items() if not key.startswith(f"field.{number}.")
        }
    state |= {f"field.{number}.0": 0 for number in (38, 45, 52, 59, 160)}
    state |= {"field.38.0": 4, "field.52.0": 2}
    return state | {"nvmlDeviceGetRemappedRows." + key: 0 for key in _REMAPPED}


def t4() -> State:
    """A T4 in a narrow slot, from ``nvidia-smi -q -x``: retired pages, no NVLink, no GPM."""
    state = _from_xml("tesla-t4.xml", architecture=6)
    return state | {"field.29.0": 1, "field.30.0": 2, "field.31.0": 0}


_REMAPPED = ("corrected", "uncorrected", "pending", "failed")


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
                self.instances[1000 * (slot + 1) + index] = {
                    "nvmlDeviceGetUUID": f"MIG-00000000-0000-0000-{index:04d}-{slot:012d}",
                    "nvmlDeviceGetGpuInstanceId": slot + 3,
                    "nvmlDeviceGetComputeInstanceId": 0,
                    **_memory(19968, 0, 12),
                    **_OWN_PROCESS,
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


def _shared(name: str, architecture: int) -> State:
    ecc = {
        f"nvmlDeviceGetMemoryErrorCounter.{kind}.{scope}.{location}": 0
        for kind in (0, 1)
        for scope in (0, 1)
        for location in ECC_LOCATIONS
    }
    return {
        "nvmlDeviceGetName": name,
        "nvmlDeviceGetArchitecture": architecture,
        "nvmlDeviceGetSerial": "1650000000000",
        **_OWN_PROCESS,
        "nvmlDeviceGetMigMode": 0,
        "nvmlDeviceGetSupportedEventTypes": 31,
        "nvmlDeviceGetPerformanceState": 0,
        "field.83.0": "123456789000+650000",
        "sample.0": 480000,
        "sample.1": 72,
        "sample.5": 1584,
        **{f"field.{number}.0": 0 for number in (3, 4, 5, 6)},
        **ecc,
    }


def _memory(total: int, reserved: int, used: int) -> State:
    """Memory sizes in MiB, as nvidia-smi prints them."""
    # the first form of the call counts reserved memory as used, the second reports it apart
    call, second = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"
    free = total - reserved - used
    sizes = {"total": total, "free": free, "used": used}
    return {
        **{f"{call}.{key}": size * MIB for key, size in (sizes | {"used": total - free}).items()},
        **{f"{second}.{key}": size * MIB for key, size in sizes.items()},
        f"{second}.reserved": reserved * MIB,
        "nvmlDeviceGetBAR1MemoryInfo.total": 131072 * MIB,
        "nvmlDeviceGetBAR1MemoryInfo.free": (131072 - used) * MIB,
        "nvmlDeviceGetBAR1MemoryInfo.used": used * MIB,
    }


def _links(count: int, megabytes_per_second: int) -> State:
    state: State = {"field.91.0": count}
    state |= {f"field.{number}.{ALL_LINKS}": "1000000+1000" for number in (138, 139)}
    for link in range(count):
        state |= {f"field.165.{link}": 1, f"field.164.{link}": megabytes_per_second}
        state |= {f"field.{number}.{link}": 0 for number in (161, 162, 163)}
    return state


def _is_hopper_link_error(key: str) -> bool:
    return key.startswith(("field.161.", "field.162.", "field.163."))


def _hopper_fields() -> State:
    watts = {187: 200, 188: 700, 189: 700, 190: 700, 192: 700}
    margins = {193: -8, 194: -2, 195: 0, 196: 0}
    zero_fields = (74, 76, 269, 270, 271, *range(173, 183), 230)
    gpm = {1: 96, 2: 88, 3: 31, 5: 52, 6: 0, 7: 51, 9: 0, 10: 37, 20: 3, 21: 6, 60: 900, 61: 901}
    return {
        **{f"field.{number}.0": value * 1000 for number, value in watts.items()},
        **{f"field.{number}.0": value for number, value in margins.items()},
        **{f"field.{number}.0": 0 for number in zero_fields},
        **{f"field.{number}.0": "5000000000+3000000" for number in (197, 198)},
        **{f"gpm.{number}": value for number, value in gpm.items()},
        "nvmlGpmQueryDeviceSupport": 1,
    }


def _from_xml(name: str, architecture: int) -> State:
    gpu = ET.parse(CAPTURES / name).getroot().find("gpu")  # noqa: S314  # our own fixture
    assert gpu is not None
    state = _shared(gpu.findtext("product_name") or "", architecture)
    sizes = [int(smi_number(gpu.findtext(f"fb_memory_usage/{key}"))) for key in ("total", "used")]
    state |= _memory(sizes[0], 0, sizes[1])
    for path, (key, factor) in KEY_BY_XML_PATH.items():
        text = gpu.findtext(path)
        if text not in {None, "N/A"}:
            state[key] = smi_number(text) * factor
    for key in ("gpu", "memory"):
        text = gpu.findtext(f"utilization/{key}_util")
        if text != "N/A":
            state[f"nvmlDeviceGetUtilizationRates.{key}"] = smi_number(text)
    is_split = gpu.findtext("mig_mode/current_mig") == "Enabled"
    state["nvmlDeviceGetMigMode"] = int(is_split)
    if is_split:
        state |= {"instances": 4, "nvmlDeviceGetMaxMigDeviceCount": 7}
        del state["nvmlDeviceGetComputeRunningProcesses_v3"]
    return state
