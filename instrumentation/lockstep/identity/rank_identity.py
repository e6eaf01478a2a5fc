"""The identity of this rank and the id of its job, as environment and torch say."""

import platform
import re
import sys
from collections.abc import Mapping
from hashlib import blake2b
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from lockstep.guard import Parts
from lockstep.identity.ranks import RankPosition, find_position, launching_pid
from lockstep.identity.requeues import (
    first_attempt_of,
    launch_key_of,
    process_key,
    read_integer,
    restarts_of,
)
from lockstep.identity.scheduler import (
    given_job_id,
    job_class_of,
    pod_job_of,
    pod_namespace_of,
    project_of,
    queue_of,
    read_text_of,
    slurm_job_of,
)
from lockstep_records.files.jobs import check_job_id, fit_job_id
from lockstep_records.page.writer import RankIdentity

_PROC = Path("/proc")
_NO_RUN_ID = "none"  # torchrun's, where nobody has set one
_PORT = re.compile(r":[0-9]*$")


def find_job_id(environment: Mapping[str, str]) -> str:
    """The id that user or scheduler have given the job; empty without one."""
    return given_job_id(environment) or scheduled_job_of(environment)


def scheduled_job_of(environment: Mapping[str, str]) -> str:
    """The id of Slurm's job or of the object that owns the pod; empty without either."""
    return slurm_job_of(environment) or pod_job_of(environment)


def job_id_of_rank(environment: Mapping[str, str], position: RankPosition) -> str:
    """The id of the job of a rank; a ValueError says why several nodes have none."""
    # In an allocation torchrun's id is one that nobody else knows.
    job_id = find_job_id(environment) or _run_id(environment.get("TORCHELASTIC_RUN_ID", ""))
    job_id = job_id or _meeting_id(
        environment, environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    )
    if job_id:
        return check_job_id(job_id)
    local_size = read_integer(environment, "LOCAL_WORLD_SIZE", position.world_size)
    if local_size < position.world_size:
        raise ValueError(
            f"{local_size} of {position.world_size} ranks are on this node and nothing names their"
            " job; set LOCKSTEP_JOB_ID, the same on all nodes"
        )
    return local_job_id(launching_pid(environment, position))


def launched_job_id(environment: Mapping[str, str], endpoint: str = "", nnodes: int = 1) -> str:
    """The id that a launcher gives its job; empty where it may take a new one.

    Of the environment the options of torchrun count that Kubeflow sets (PET_*). Where the nodes
    share no id, a ValueError says what to give.
    """
    job_id = find_job_id(environment) or _run_id(environment.get("PET_RDZV_ID", ""))
    if job_id or nnodes == 1:
        return job_id
    host, port = _PORT.sub("", endpoint), endpoint.rpartition(":")[2]
    job_id = _meeting_id(environment, host, port)
    if not job_id:
        raise ValueError(f"--nnodes {nnodes} needs --job-id, the same on all nodes")
    return job_id


def local_job_id(process: int, proc: Path = _PROC) -> str:
    """Id by the process that started all ranks of a node: never come again, in no container."""
    boot = read_text_of(proc / "sys" / "kernel" / "random" / "boot_id").strip()
    text = f"{boot} {process_key(process, proc)}"
    return f"local-{process}-{blake2b(text.encode(), digest_size=4).hexdigest()}"


def _meeting_id(environment: Mapping[str, str], host: str, port: str) -> str:
    """Id by the address at which all ranks meet; empty for one of this node alone."""
    if _is_loopback(host):
        return ""
    # Short names of services are those of a namespace.
    parts = (pod_namespace_of(environment), host, port)
    return fit_job_id(".".join(filter(None, parts)))


def _is_loopback(host: str) -> bool:
    host = host.strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in {"", "localhost"}


def _run_id(text: str) -> str:
    return "" if text == _NO_RUN_ID else text


_PIPELINE_AXIS = "pp"
_VERSION_CHARACTERS = 32
# Names of the axes of a DeviceMesh that scripts and libraries use, and ours.
_AXES = {axis: axis for axis in ("dp", "fsdp", "pp", "tp", "cp", "ep")} | {
    "data_parallel": "dp",
    "dp_replicate": "dp",
    "replicate": "dp",
    "dp_shard": "fsdp",
    "shard": "fsdp",
    "tensor_parallel": "tp",
    "context_parallel": "cp",
    "pipeline_parallel": "pp",
}


def _torch_version() -> str:
    """Version of torch; empty where it is not loaded."""
    torch = sys.modules.get("torch")
    return "" if torch is None else str(torch.__version__)


def _nccl_version() -> str:
    """Version of NCCL; empty without a GPU, and in a build of torch that has none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_nccl_available():
        return ""
    return ".".join(str(number) for number in torch.cuda.nccl.version())


def _gpu_uuid() -> str:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    return f"GPU-{uuid}"


def coordinates_of(mesh: Any) -> Mapping[str, int] | None:
    """Coordinates by axis, of torch's DeviceMesh too; None where no axis is one of ours."""
    if mesh is None or isinstance(mesh, Mapping):
        return mesh
    names = mesh.mesh_dim_names or ("dp", "fsdp")[-mesh.ndim :]  # as fully_shard takes them
    coordinates = zip(names, mesh.get_coordinate() or (), strict=False)
    return {_AXES[name]: int(number) for name, number in coordinates if name in _AXES} or None


def mesh_with_stage(
    mesh: Mapping[str, int] | None, schedule: object | None
) -> Mapping[str, int] | None:
    """The coordinates of a rank, with its stage by the schedule where they lack it.

    Ranks of different stages do different work: without the coordinate they would be compared.
    """
    if schedule is None or _PIPELINE_AXIS in (mesh or {}):
        return mesh
    stages = getattr(schedule, "_stages", None) or [getattr(schedule, "_stage", None)]
    group_rank = getattr(stages[0], "group_rank", None)
    return mesh if group_rank is None else {_PIPELINE_AXIS: int(group_rank), **(mesh or {})}


def identity_from(
    environment: Mapping[str, str],
    mesh: Mapping[str, int] | None = None,
    parts: Parts | None = None,
    position: RankPosition | None = None,
) -> RankIdentity:
    """The identity of this rank; what torch does not say is empty.

    Mesh and position follow from group and environment where left out, the rank itself as dp. A
    ValueError names a variable that is invalid.
    """
    position = position or find_position(environment) or RankPosition()
    rank, parts = position.rank, parts or Parts()
    process = launching_pid(environment, position)
    return RankIdentity(
        job_id=job_id_of_rank(environment, position),
        rank=rank,
        world_size=position.world_size,
        local_rank=position.local_rank,
        attempt=first_attempt_of(environment) + restarts_of(environment),
        cluster=environment.get("LOCKSTEP_CLUSTER", "local"),
        project=project_of(environment),
        node=environment.get("LOCKSTEP_NODE") or platform.node(),
        gpu_uuid=parts.run("gpu_identity", _gpu_uuid) or "",
        # A build of torch may name itself at length, and a text that does not fit is refused.
        torch_version=(parts.run("versions", _torch_version) or "")[:_VERSION_CHARACTERS],
        nccl_version=(parts.run("versions", _nccl_version) or "")[:_VERSION_CHARACTERS],
        queue=queue_of(environment),
        job_class=job_class_of(environment),
        launch_key=parts.run("earlier_attempts", launch_key_of, environment, process) or 0,
        mesh=tuple((mesh or {"dp": rank}).items()),
    )
