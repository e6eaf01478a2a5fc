"""The files of a fake node that no package ships: /proc, control groups, recorded adapters."""

import os
import shutil
from pathlib import Path

from lockstep_cli.gameday.fake_node import Tree, unpack, write

FIXTURES = Path(__file__).parent.parent / "fixtures"


def fill_procfs(procfs: Path, group: str = "/kubepods.slice/pod1/rank") -> Path:
    """Writes the /proc of a node with storage, in which this process is a rank of the group."""
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
