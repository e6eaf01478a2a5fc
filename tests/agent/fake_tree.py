"""The files of a fake node: ports, PCI links and control groups, recorded or made up."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

FIXTURES = Path(__file__).parent.parent / "fixtures"
_STATISTICS = ("bytes", "packets", "errors", "dropped")
_SWITCH = "pci0000:{bus}/0000:{bus}:01.0/0000:{up}:00.0"
# Files of a port, of either end of a PCIe 5 link, and of a network interface.
_ADAPTER = json.loads((FIXTURES / "node" / "adapter.json").read_text(encoding="utf-8"))


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
            shutil.copy(FIXTURES / "node" / "ethtool-mlx5.txt", folder / "ethtool_statistics")

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


def fill_procfs(procfs: Path, group: str = "/kubepods.slice/pod1/rank") -> Path:
    """Writes the /proc of a node with storage, in which this process is a rank of a job.

    Args:
        procfs: the folder to fill.
        group: control group of the rank.
    """
    unpack(FIXTURES / "node" / "proc.json", procfs)
    write(procfs / str(os.getpid()) / "cgroup", f"0::{group}")
    tcp = "Tcp: OutSegs RetransSegs\nTcp: 9000 12\n"
    write(procfs / str(os.getpid()) / "net" / "snmp", tcp)
    shutil.copy("/proc/self/stat", procfs / str(os.getpid()) / "stat")
    (procfs / "self").mkdir(exist_ok=True)
    shutil.copy("/proc/self/statm", procfs / "self" / "statm")
    return procfs


def fill_cgroups(sysfs: Path) -> None:
    """Writes control groups of version 2: a pod with limits, and the rank's group in it."""
    unpack(FIXTURES / "node" / "cgroups.json", sysfs / "fs" / "cgroup")


def fill_sysfs(sysfs: Path) -> Path:
    """Writes a /sys with one of everything: mlx5, mlx4, i40iw, EFA, a bond, a saturated counter."""
    shutil.copytree(FIXTURES / "node" / "sys", sysfs, dirs_exist_ok=True)
    unpack(FIXTURES / "sysfs-infiniband" / "node_exporter.json", sysfs)
    tree = Tree(sysfs, gpus=4, infiniband=2, ethernet=1)
    write(tree.port("mlx5_1") / "counters" / "link_downed", 255)
    write(tree.port("mlx5_2") / "hw_counters" / "rdma_rx_bytes", 77)
    efa = sysfs / "class" / "infiniband" / "rdmap16s27" / "ports" / "1"
    write(efa.parents[1] / "device" / "driver", "-> ../../../../bus/pci/drivers/efa")
    for name, content in (("state", "4: ACTIVE"), ("link_layer", "Unspecified")):
        write(efa / name, content)
    for name in ("tx_bytes", "rx_bytes", "tx_pkts", "rx_pkts", "rx_drops", "rdma_read_bytes"):
        write(efa / "hw_counters" / name, 4096)
    write(sysfs / "class" / "net" / "bond0" / "bonding" / "slaves", "ens1f0np0 ens1f1np1")
    write(sysfs / "class" / "net" / "bond0" / "operstate", "up")
    upstream = (sysfs / "bus" / "pci" / "devices" / "0000:10:00.0").resolve().parent
    write(upstream / "aer_dev_correctable", "RxErr 2\nBadTLP 0\nTOTAL_ERR_COR 2")
    fill_cgroups(sysfs)
    return sysfs
