"""Which job a GPU is allocated to: by pages, processes, the kubelet and a prolog's files."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from lockstep_agent.collectors.gpu.allocation import GpuAllocation, GpuInUse
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.sources.pod_resources import (
    PodResourcesError,
    list_allocations,
    message_classes,
)
from lockstep_agent.sources.process_job import slurm_job_step
from lockstep_catalogue.gpu import GPU_OWNER_INFO

from ..live_page import LivePage

PROC = Path("/proc")
OWN = (os.getpid(),)
GPUS = [
    GpuInUse(index=0, uuid="GPU-a", pids=(10, 11)),
    GpuInUse(index=1, uuid="GPU-b", instances=("MIG-b1",)),
    GpuInUse(index=2, uuid="GPU-c"),
]


HELD: tuple[dict[str, Any], ...] = (
    {"devices": [{"resource_name": "nvidia.com/gpu", "device_ids": ["GPU-a::3"]}]},
    {"devices": [{"resource_name": "mig", "device_ids": ["MIG-b1", "cpu-7"]}]},
    {
        "dynamic_resources": [
            {
                "claim_name": "my-gpu",
                "claim_resources": [
                    {"driver_name": "gpu.nvidia.com", "device_name": "gpu-2"},
                    {"driver_name": "nic.example.com", "device_name": "gpu-1"},
                ],
            }
        ]
    },
)


def answer() -> Any:
    """Devices as plugins and the driver of claims name them."""
    pods = [
        {
            "name": f"trainer-{number}",
            "namespace": "research",
            "containers": [{"name": "main", **held}],
        }
        for number, held in enumerate(HELD)
    ]
    return message_classes()["Response"](pod_resources=pods)


@pytest.fixture(name="kubelet")
def _kubelet(tmp_path: Path) -> Iterator[Path]:
    """A gRPC server on a Unix socket that answers as the kubelet does."""
    socket = tmp_path / "kubelet.sock"
    body = answer().SerializeToString()
    handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: body)
    lister = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((lister,))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    yield socket
    server.stop(None).wait()


def allocation(root: Path, gpus: list[GpuInUse] | None = None, **sources: Any) -> GpuAllocation:
    """Of the GPUs given by the processes of this machine, else of those above by the folder's."""
    procfs = root if gpus is None else PROC
    listed = GPUS if gpus is None else gpus
    sources = {"kubelet": root / "none", **sources}
    return GpuAllocation(lambda: listed, PageStore(root, procfs), procfs=procfs, **sources)


def owners(root: Path, **sources: Any) -> list[dict[str, str]]:
    """The labels that are not empty, of each series."""
    names = GPU_OWNER_INFO.label_names
    readings = allocation(root, **sources).collect()
    series = [dict(zip(names, reading.labels, strict=True)) for reading in readings]
    return [{name: value for name, value in labels.items() if value} for labels in series]


def test_the_kubelet_names_pods_by_plugin_by_mig_instance_and_by_claim(
    tmp_path: Path, kubelet: Path
) -> None:
    pod = {"namespace": "research", "container": "main"}
    assert owners(tmp_path, kubelet=kubelet) == [
        {"gpu": "0", "uuid": "GPU-a", "pod": "trainer-0", **pod},
        {"gpu": "1", "uuid": "GPU-b", "mig_uuid": "MIG-b1", "pod": "trainer-1", **pod},
        {"gpu": "2", "uuid": "GPU-c", "pod": "trainer-2", "claim": "my-gpu", **pod},
    ]


def test_a_kubelet_that_does_not_answer_costs_only_the_pods(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    socket = tmp_path / "kubelet.sock"
    socket.touch()

    def silent(_socket: Path) -> list[Any]:
        raise PodResourcesError("it is away")

    (tmp_path / "0").write_text("77\n")
    collector = allocation(tmp_path, kubelet=socket, job_files=tmp_path, allocations=silent)
    for _ in range(2):
        assert [reading.labels[6] for reading in collector.collect()] == ["77"]
    assert caplog.text.count("it is away") == 1
    with pytest.raises(PodResourcesError):
        list_allocations(socket)


@pytest.mark.parametrize(
    ("path", "job_step"),
    [
        ("12:devices:/slurm/uid_1000/job_42/step_0/task_3", ("42", "0")),
        ("4:memory:/slurm_node7/uid_1000/job_42/step_batch", ("42", "batch")),
        ("0::/system.slice/slurmstepd.scope/job_42/step_extern/user/task_0", ("42", "extern")),
        ("0::/system.slice/node7_slurmstepd.scope/job_42/step_1/user", ("42", "1")),
        ("0::/user.slice/job_42/step_1", ("", "")),
        ("0::/kubepods.slice/kubepods-pod1234.slice", ("", "")),
    ],
)
def test_a_control_group_of_any_version_names_its_job(path: str, job_step: tuple[str, str]) -> None:
    assert slurm_job_step(f"1:name=systemd:/x\n{path}\n") == job_step


def test_processes_name_their_jobs_and_those_who_share_a_gpu_are_one_series(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "run-a").mkdir(parents=True)
    for pid, rank in ((10, 3), (11, 12)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text("0::/slurmstepd.scope/job_42/step_0/user\n")
        environment = f"HOME=/root\0LOCKSTEP_JOB_ID=run-a\0RANK={rank}\0"
        (tmp_path / str(pid) / "environ").write_text(environment)
    slurm = {"slurm_job": "42", "slurm_step": "0"}
    assert owners(tmp_path) == [
        {"gpu": "0", "uuid": "GPU-a", "job_id": "run-a", "rank": "3,12", **slurm}
    ]


def test_a_process_does_not_name_the_job_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "run-a").mkdir(parents=True)
    (tmp_path / "10").mkdir()
    (tmp_path / "10" / "cgroup").write_text("0::/slurmstepd.scope/job_42/step_0/user\n")
    (tmp_path / "10" / "environ").write_text("LOCKSTEP_JOB_ID=run-a\0RANK=3\0")
    os.chown(tmp_path / "10", os.getuid() + 1, -1)
    slurm = {"slurm_job": "42", "slurm_step": "0"}
    assert owners(tmp_path) == [{"gpu": "0", "uuid": "GPU-a", **slurm}]


def by_page(root: Path, gpus: list[GpuInUse]) -> list[tuple[str, ...]]:
    """UUID, job and rank of each GPU that has an owner."""
    readings = allocation(root, gpus).collect()
    names = GPU_OWNER_INFO.label_names
    columns = [names.index(name) for name in ("uuid", "job_id", "rank")]
    return [tuple(each.labels[column] for column in columns) for each in readings]


def test_a_rank_page_names_the_job_while_its_process_runs(root: Path) -> None:
    LivePage(root, rank=3, gpu_uuid="GPU-c")
    LivePage(root, rank=2, gpu_uuid="GPU-a").replace_identity(pid=0x7FFFFFFF)
    gpus = [GpuInUse(index=i, uuid=f"GPU-{name}", pids=OWN) for i, name in enumerate("ac")]
    assert by_page(root, gpus) == [("GPU-c", "job", "3")]


def test_a_page_claims_no_gpu_on_which_its_user_has_no_process(root: Path) -> None:
    for rank, name in enumerate("abc"):
        LivePage(root, rank=rank, gpu_uuid=f"GPU-{name}")
    os.chown(root / "jobs" / "job", os.getuid() + 1, -1)
    for page in (root / "jobs" / "job" / "0").glob("*.page"):
        os.chown(page, os.getuid() + 1, -1)
    gpus = [
        GpuInUse(index=0, uuid="GPU-a", pids=OWN),
        GpuInUse(index=1, uuid="GPU-b"),
        GpuInUse(index=2, uuid="GPU-c", pids=(0x7FFFFFFF,)),
    ]
    assert by_page(root, gpus) == []


def test_a_refused_environment_leaves_the_slurm_job_of_the_cgroup_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def refuse(path: Path, *arguments: Any, **names: Any) -> Any:
        if path.name == "environ":
            raise PermissionError(13, os.strerror(13))
        return opened(path, *arguments, **names)

    monkeypatch.setattr(Path, "open", refuse)
    (tmp_path / "10").mkdir()
    (tmp_path / "10" / "cgroup").write_text("4:memory:/slurm/uid_7/job_42/step_0/task_1\n")
    collector = allocation(tmp_path)
    for _ in range(2):
        [owner] = collector.collect()
        assert {"GPU-a", "42"} <= {*owner.labels}
    assert caplog.text.count("environment of processes") == 1


def test_a_file_of_a_mig_instance_names_its_slurm_job(tmp_path: Path) -> None:
    (tmp_path / "MIG-b1").write_text("4242_7\n")
    owner = {"gpu": "1", "uuid": "GPU-b", "mig_uuid": "MIG-b1", "slurm_job": "4242_7"}
    assert owners(tmp_path, job_files=tmp_path) == [owner]


def test_a_gpu_that_fell_off_the_bus_keeps_its_owner_and_its_names(root: Path) -> None:
    LivePage(root, rank=3, gpu_uuid="GPU-x")
    present = GpuInUse(index=1, uuid="GPU-y", address="0000:1b:00.0")
    lost = GpuInUse(index=0, uuid="GPU-x", address="0000:1a:00.0", pids=OWN)
    listed = [lost, present]
    collector = allocation(root, listed)
    [before] = collector.collect()
    # The driver was opened anew without it, and counts the other one from 0.
    listed[:] = [GpuInUse(index=0, uuid="GPU-y", address="0000:1b:00.0")]
    [after] = collector.collect()
    assert after.labels == before.labels
    assert after.labels[:3] == ("0", "GPU-x", "0000:1a:00.0")
    # Another board in its slot is not the lost one.
    listed[:] = [GpuInUse(index=0, uuid="GPU-z", address="0000:1a:00.0")]
    [replaced] = collector.collect()
    assert replaced.labels[:3] == ("", "GPU-x", "")


def test_idle_gpus_of_the_pod_or_slurm_job_of_a_rank_count_as_its_jobs(root: Path) -> None:
    files = root / "job-files"
    files.mkdir()
    gpus = [
        GpuInUse(index=index, uuid=f"GPU-{name}", pids=() if name == "b" else OWN)
        for index, name in enumerate("abc")
    ]
    LivePage(root, rank=3, gpu_uuid="GPU-a")
    LivePage(root, job_id="other", rank=0, gpu_uuid="GPU-c")
    collector = allocation(root, gpus, job_files=files)
    collector.collect()
    assert collector.num_gpus_of("job") == 1
    for index in range(3):
        (files / str(index)).write_text("42")
    collector = allocation(root, gpus, job_files=files)
    assert collector.num_gpus_of("job") is None
    collector.collect()
    assert collector.num_gpus_of("job") == 2  # GPU-b idles, GPU-c is another job's
    assert collector.num_gpus_of("unheard-of") is None
