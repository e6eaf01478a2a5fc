"""The id of a job: one over all its ranks and nodes, and never that of another job."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from servers import captured

from lockstep.identity.rank_identity import (
    find_job_id,
    identity_from,
    launched_job_id,
    local_job_id,
)
from lockstep_records.files.jobs import check_job_id

# Plain torchrun in a container: its run id is "none", and the launcher is process 1 of each pod.
PLAIN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none",
         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # fmt: skip
JOBSET = {
    "jobset.sigs.k8s.io/jobset-name": "llm",
    "jobset.sigs.k8s.io/jobset-uid": "0b5f6a30-6a3f-4f0e-9d65-2f1f6d6f1111",
    "batch.kubernetes.io/job-name": "llm-node-0",
    "batch.kubernetes.io/controller-uid": "99999999-0000-4000-8000-000000000000",
}
KINDS = {
    "JobSet": (JOBSET, "vision.llm-0b5f6a30"),
    "PyTorchJob": ({"training.kubeflow.org/job-name": "bert"}, "vision.bert"),
    "RayJob": ({"ray.io/cluster": "tune-raycluster-x7k2p"}, "vision.tune-raycluster-x7k2p"),
    "Job": (
        {
            "batch.kubernetes.io/job-name": "once",
            "batch.kubernetes.io/controller-uid": "77777777-0000-4000-8000-000000000000",
        },
        "vision.once-77777777",
    ),
    "label": (JOBSET | {"lockstep/job-id": "mine"}, "mine"),
}


def pod(tmp_path: Path, labels: dict[str, str], namespace: str = "vision") -> dict[str, str]:
    """The environment of a pod with a downward API volume."""
    folder = tmp_path / namespace
    folder.mkdir(exist_ok=True)
    lines = (f'{name}="{value}"' for name, value in labels.items())
    (folder / "labels").write_text("\n".join(lines))
    return {"LOCKSTEP_POD_INFO": str(folder), "LOCKSTEP_NAMESPACE": namespace}


@pytest.mark.parametrize("kind", KINDS)
def test_the_object_that_owns_the_pods_names_the_job(kind: str, tmp_path: Path) -> None:
    labels, job_id = KINDS[kind]
    environment = pod(tmp_path, labels)
    assert find_job_id(environment) == check_job_id(job_id)
    assert identity_from(PLAIN | environment).job_id == job_id
    assert launched_job_id(environment | {"PET_RDZV_ID": "bert"}, nnodes=2) == job_id


def test_the_downward_api_names_it_by_variables_too() -> None:
    given = {"LOCKSTEP_OBJECT_NAME": "bert", "LOCKSTEP_OBJECT_UID": "0b5f6a30-6a3f-4f0e-9d65-2f1f"}
    assert find_job_id(given | {"LOCKSTEP_NAMESPACE": "a"}) == "a.bert-0b5f6a30"
    assert find_job_id(given) == "bert-0b5f6a30"


def test_what_the_user_says_comes_before_what_the_platform_says(tmp_path: Path) -> None:
    environment = pod(tmp_path, JOBSET) | {"LOCKSTEP_JOB_ID": "mine"}
    assert find_job_id(environment) == "mine"
    assert find_job_id(pod(tmp_path, JOBSET) | {"SLURM_JOB_ID": "42"}) == "42"
    elastic = PLAIN | {"TORCHELASTIC_RUN_ID": "abc", "MASTER_ADDR": "node-0"}
    assert identity_from(elastic).job_id == "abc"


def test_jobs_of_one_name_in_two_namespaces_are_two(tmp_path: Path) -> None:
    ids = set()
    for namespace in ("vision", "speech"):
        own = pod(tmp_path, {"training.kubeflow.org/job-name": "bert"}, namespace)
        master = {"LOCKSTEP_NAMESPACE": namespace, "MASTER_ADDR": "bert-0", "MASTER_PORT": "23456"}
        ids |= {find_job_id(own), identity_from(PLAIN | master).job_id}
    assert len(ids) == 4


def test_the_longest_names_of_kubernetes_make_ids_that_differ(tmp_path: Path) -> None:
    names = [f"{'n' * 62}{letter}" for letter in "ab"]
    ids = {
        find_job_id(pod(tmp_path, {"training.kubeflow.org/job-name": name}, "s" * 63))
        for name in names
    }
    assert len(set(map(check_job_id, ids))) == 2


@pytest.mark.parametrize(
    "line", ["no equals sign", 'lockstep/job-id="../x"', "\0" * 9, "=" * 200_000]
)
def test_a_pod_info_that_holds_anything_else_names_nothing(line: str, tmp_path: Path) -> None:
    for name in ("a file", "a folder"):
        (tmp_path / name).mkdir()
    (tmp_path / "a file" / "labels").write_text(line)
    (tmp_path / "a folder" / "labels").mkdir()
    for name in ("a file", "a folder"):
        assert find_job_id({"LOCKSTEP_POD_INFO": str(tmp_path / name)}) == ""


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.0.1", "localhost", "::1", "[::1]", ""])
def test_a_loopback_address_names_no_job(address: str) -> None:
    environment = PLAIN | {"MASTER_ADDR": address}
    assert identity_from(environment).job_id.startswith("local-")


@pytest.mark.parametrize("address", ["llm-0.llm", "10.1.2.3", "fd00::7", "node_1.example."])
def test_an_address_of_all_nodes_names_the_job_on_all_of_them(address: str) -> None:
    ids = {
        identity_from(
            PLAIN | {"MASTER_ADDR": address, "RANK": rank, "GROUP_RANK": rank, "WORLD_SIZE": "4"}
        ).job_id
        for rank in ("0", "3")
    }
    assert len(ids) == 1
    assert not next(iter(ids)).startswith("local-")
    [other] = {identity_from(PLAIN | {"MASTER_ADDR": address, "MASTER_PORT": "1"}).job_id}
    assert other not in ids


def test_a_process_id_names_no_job_of_several_nodes() -> None:
    nodes = PLAIN | {"WORLD_SIZE": "4"}
    with pytest.raises(ValueError, match="set LOCKSTEP_JOB_ID, the same on all nodes"):
        identity_from(nodes)


def test_a_process_id_counts_with_its_namespace_boot_and_start(tmp_path: Path) -> None:
    def proc(name: str, namespace: str, boot: str, start: str) -> Path:
        folder = tmp_path / name
        (folder / "self" / "ns").mkdir(parents=True)
        (folder / "self" / "ns" / "pid").symlink_to(f"pid:[{namespace}]")
        (folder / "sys" / "kernel" / "random").mkdir(parents=True)
        (folder / "sys" / "kernel" / "random" / "boot_id").write_text(f"{boot}\n")
        (folder / "1").mkdir()
        (folder / "1" / "stat").write_text(f"1 (a ) b) {'0 ' * 19}{start} 0")
        return folder

    places = [("4026531836", "a", "5"), ("4026531837", "a", "5"), ("4026531836", "b", "5"),
              ("4026531836", "a", "6")]  # fmt: skip
    ids = {local_job_id(1, proc(str(n), *each)) for n, each in enumerate(places)}
    assert len(set(map(check_job_id, ids))) == len(places)
    assert local_job_id(os.getpid()) == local_job_id(os.getpid())


def test_a_launcher_takes_what_all_its_nodes_share() -> None:
    assert launched_job_id({"PET_RDZV_ID": "none"}) == ""
    assert launched_job_id({"PET_RDZV_ID": "abc"}, nnodes=2) == "abc"
    ids = {launched_job_id({}, "llm-0.llm:29400", 2) for _ in range(2)}
    assert len(ids) == 1
    assert "" not in ids
    with pytest.raises(ValueError, match="--nnodes 2 needs --job-id"):
        launched_job_id({}, "127.0.0.1:29400", 2)


def test_the_first_process_of_a_container_is_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getppid", lambda: 0)
    assert identity_from(PLAIN).job_id == local_job_id(os.getpid())


_UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--mount")
# The shell is process 1 of its namespace and the launcher of two ranks, as torchrun is in a pod.
_POD = '"$0" -c "$1" & "$0" -c "$1" & wait'
_RANK = r"""
import os
import shutil
import subprocess
import sys
from lockstep.identity.rank_identity import identity_from
assert os.getppid() == 1
os.write(1, f"{identity_from(dict(os.environ)).job_id}\n".encode())  # both write at once
"""


def _may_unshare() -> bool:
    tool = shutil.which("unshare")
    return tool is not None and subprocess.run([*_UNSHARE, "true"], check=False).returncode == 0


def ids_in_pod(environment: dict[str, str]) -> list[str]:
    done = captured(
        [*_UNSHARE, "sh", "-c", _POD, sys.executable, _RANK],
        env=os.environ | environment,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.skipif(not _may_unshare(), reason="no namespaces here")
def test_two_plain_jobs_in_pods_on_one_node_are_two_and_all_ranks_of_one_agree() -> None:
    ids = [ids_in_pod(PLAIN) for _ in range(2)]
    assert [len(of_pod) for of_pod in ids] == [2, 2]
    assert [len(set(of_pod)) for of_pod in ids] == [1, 1]
    assert ids[0][0] != ids[1][0]
    assert all(job_id.startswith("local-1-") for of_pod in ids for job_id in of_pod)
