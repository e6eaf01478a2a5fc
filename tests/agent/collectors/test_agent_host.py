"""The host: pressure, control groups of both versions, volumes, PCIe links and affinity."""

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from lockstep_agent.collectors.jobs.job_host import JobHost
from lockstep_agent.collectors.node.pcie import Affinity, Pcie
from lockstep_agent.collectors.node.storage import Storage
from lockstep_agent.jobs.page_store import PageStore
from lockstep_catalogue import fabric, host
from lockstep_cli.gameday.fake_node import Tree, write

from ..fake_tree import fill_procfs
from ..values import Values, values_of


def job_values(folder: Path) -> Values:
    (folder / "jobs" / "job").mkdir(parents=True)
    pages = PageStore(folder, folder / "proc")
    with patch("lockstep_agent.collectors.jobs.job_host.running_pids", lambda _: [os.getpid()]):
        values = values_of(JobHost(str(folder / "sys"), str(folder / "proc"), pages))
    assert values.pop((host.JOB_TCP_SEGMENTS, ("job",))) == 9000
    assert values.pop((host.JOB_TCP_RETRANSMITS, ("job",))) == 12
    return values


def test_under_slurm_the_jobs_group_counts_and_not_the_steps(tmp_path: Path) -> None:
    group = "/system.slice/slurmstepd.scope/job_77"
    fill_procfs(tmp_path / "proc", f"{group}/step_0/user/task_0")
    folder = tmp_path / "sys" / "fs" / "cgroup"
    write(folder / "cgroup.controllers", "cpu memory")
    (folder / group[1:] / "step_0" / "user" / "task_0").mkdir(parents=True)
    write(folder / group[1:] / "memory.current", 5)
    write(folder / group[1:] / "step_0" / "user" / "task_0" / "memory.current", 4)
    assert job_values(tmp_path) == {(host.JOB_MEMORY, ("job",)): 5}


def test_version_1_is_read_in_its_units_and_its_largest_number_is_no_limit(tmp_path: Path) -> None:
    fill_procfs(tmp_path / "proc")
    groups = "9:name=systemd:/\n4:memory:/slurm/uid_1/job_7/step_0\n1:cpu,cpuacct:/slurm/job_7"
    write(tmp_path / "proc" / str(os.getpid()) / "cgroup", groups)
    memory = tmp_path / "sys" / "fs" / "cgroup" / "memory" / "slurm" / "uid_1" / "job_7"
    write(memory / "memory.usage_in_bytes", 10)
    write(memory / "memory.limit_in_bytes", 9223372036854771712)
    write(memory / "memory.failcnt", 3)
    write(memory / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2")
    cpu = tmp_path / "sys" / "fs" / "cgroup" / "cpu,cpuacct" / "slurm" / "job_7"
    write(cpu / "cpu.cfs_quota_us", 50000)
    write(cpu / "cpu.stat", "nr_periods 9\nnr_throttled 1\nthrottled_time 3000000000")
    assert job_values(tmp_path) == {
        (host.JOB_MEMORY, ("job",)): 10,
        (host.JOB_THROTTLED_SECONDS, ("job",)): 3,
        (host.JOB_MEMORY_EVENTS, ("job", "max")): 3,
        (host.JOB_MEMORY_EVENTS, ("job", "oom_kill")): 2,
    }


def test_a_mounted_disk_has_series_and_an_unmounted_or_loop_device_has_none(tmp_path: Path) -> None:
    write(tmp_path / "fs" / "ext4" / "nvme0n1p2" / "errors_count", 4)
    values = values_of(Storage(str(tmp_path), str(fill_procfs(tmp_path / "proc"))))
    volumes = {labels[0] for _, labels in values}
    assert volumes == {"0:53", "nvme0n1p2"}
    assert values[host.STORAGE_ERRORS, ("nvme0n1p2",)] == 4


def test_a_link_is_compared_with_what_both_ends_support(tmp_path: Path) -> None:
    Tree(tmp_path, gpus=2, infiniband=0, ethernet=0)
    slow = (tmp_path / "bus" / "pci" / "devices" / "0000:10:00.0").resolve()
    write(slow / "current_link_width", 8)
    old_slot = (tmp_path / "bus" / "pci" / "devices" / "0000:11:00.0").resolve()
    write(old_slot / "current_link_speed", "16.0 GT/s PCIe")
    write(old_slot.parent / "max_link_speed", "16.0 GT/s PCIe")
    write(old_slot / "numa_node", "-1")
    values = values_of(Pcie(str(tmp_path), detail=True))
    assert values[fabric.PCIE_RATIO, ("0000:10:00.0",)] == 0.5
    assert values[fabric.PCIE_RATIO, ("0000:11:00.0",)] == 1
    assert values[fabric.PCIE_SPEED, ("0000:11:00.0",)] == 16e9
    infos = {labels[0]: labels[1:] for metric, labels in values if metric is fabric.PCIE_INFO}
    assert infos["0000:10:00.0"] == ("gpu", "", slow.parent.name, "0")
    assert infos["0000:11:00.0"][-1] == ""


@pytest.mark.parametrize("which", ["current", "max"])
def test_a_link_without_a_speed_has_no_ratio(tmp_path: Path, which: str) -> None:
    Tree(tmp_path, gpus=1, infiniband=0, ethernet=0)
    gpu = (tmp_path / "bus" / "pci" / "devices" / "0000:10:00.0").resolve()
    for end in (gpu, gpu.parent):
        write(end / f"{which}_link_speed", "0 GT/s")
    exported = {metric for metric, _ in values_of(Pcie(str(tmp_path)))}
    assert fabric.PCIE_INFO in exported
    assert fabric.PCIE_RATIO not in exported


def test_errors_at_both_ends_of_a_link_have_series_that_stay_once_exported(tmp_path: Path) -> None:
    Tree(tmp_path, gpus=1, infiniband=0, ethernet=0)
    collector, gpu = Pcie(str(tmp_path)), "0000:10:00.0"
    upstream = (tmp_path / "bus" / "pci" / "devices" / gpu).resolve().parent
    ends = {
        labels[1] for metric, labels in values_of(collector) if metric is fabric.PCIE_AER_ERRORS
    }
    assert ends == {"device"}
    for count in (2, 0):
        write(upstream / "aer_dev_correctable", f"RxErr {count}\nBadTLP 0\nTOTAL_ERR_COR {count}")
        values = values_of(collector)
        end = (gpu, "port_above", "correctable")
        assert values[fabric.PCIE_AER_ERRORS, end] == count
        assert values[fabric.PCIE_AER_KINDS, (*end, "RxErr")] == count
        assert (fabric.PCIE_AER_KINDS, (*end, "BadTLP")) not in values


def test_without_a_common_bridge_the_memory_node_decides_and_far_adapters_are_left_out(
    tmp_path: Path,
) -> None:
    devices = tmp_path / "bus" / "pci" / "devices"
    for address, code, node in (
        ("0000:01:00.0", "0x030200", 0),
        ("0000:02:00.0", "0x030200", 1),
        ("0000:03:00.0", "0x020000", 0),
    ):
        write(devices / address / "class", code)
        write(devices / address / "vendor", "0x10de")
        write(devices / address / "numa_node", node)
    write(devices / "0000:03:00.0" / "net" / "eth0" / "mtu", 1500)
    assert set(values_of(Affinity(str(tmp_path)))) == {
        (fabric.AFFINITY, ("0000:01:00.0", "eth0", "node", "0"))
    }
