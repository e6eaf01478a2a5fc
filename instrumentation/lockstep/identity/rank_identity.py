"""The identity of this rank: its position in the job, and what environment and torch say of it."""

import platform
import sys
from collections.abc import Mapping
from typing import Any

from lockstep.guard import Parts
from lockstep.identity.job_id import job_id_of_rank
from lockstep.identity.ranks import RankPosition, find_position, launching_pid
from lockstep.identity.requeues import first_attempt_of, launch_key_of, restarts_of
from lockstep.identity.scheduler import job_class_of, project_of, queue_of
from lockstep_records.page.writer import RankIdentity

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
