"""The identity of this rank, from the environment that torchrun and ``lockstep run`` set."""

import os
import platform
import sys
from collections.abc import Mapping

from lockstep.scheduler import job_class_of, queue_of
from lockstep_records.jobs import check_job_id
from lockstep_records.page.writer import RankIdentity

_PIPELINE_AXIS = "pp"


def _integer(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not text.lstrip("-").isdigit():
        raise ValueError(
            f"{name}={text!r} is no whole number; torchrun sets it, do not set it by hand"
        )
    return int(text)


def _job_id(environment: Mapping[str, str]) -> str:
    job_id = environment.get("LOCKSTEP_JOB_ID") or environment.get("TORCHELASTIC_RUN_ID", "")
    if job_id and job_id != "none":  # torchrun's id where nobody has set one
        return check_job_id(job_id)
    # All ranks of a node have torchrun for their parent.
    return f"local-{os.getppid() if 'RANK' in environment else os.getpid()}"


def _versions() -> tuple[str, str]:
    """Versions of torch and NCCL; empty where torch is not loaded or has no GPU."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "", ""
    nccl = ""
    if torch.cuda.is_available():
        nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    return str(torch.__version__), nccl


def _gpu_uuid() -> str:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    return f"GPU-{uuid}"


def mesh_with_stage(
    mesh: Mapping[str, int] | None, schedule: object | None
) -> Mapping[str, int] | None:
    """The coordinates of a rank, with its place in the pipeline by the schedule where they lack it.

    Ranks of different stages do different work: without the coordinate they would be compared.
    """
    if schedule is None or _PIPELINE_AXIS in (mesh or {}):
        return mesh
    stages = getattr(schedule, "_stages", None) or [getattr(schedule, "_stage", None)]
    group_rank = getattr(stages[0], "group_rank", None)
    return mesh if group_rank is None else {_PIPELINE_AXIS: int(group_rank), **(mesh or {})}


def identity_from(
    environment: Mapping[str, str], mesh: Mapping[str, int] | None = None
) -> RankIdentity:
    """The identity of this rank.

    Raises:
        ValueError: a variable is invalid; the text names it.
    """
    rank = _integer(environment, "RANK", 0)
    torch_version, nccl_version = _versions()
    return RankIdentity(
        job_id=_job_id(environment),
        rank=rank,
        world_size=_integer(environment, "WORLD_SIZE", 1),
        local_rank=_integer(environment, "LOCAL_RANK", 0),
        attempt=_integer(environment, "TORCHELASTIC_RESTART_COUNT", 0),
        cluster=environment.get("LOCKSTEP_CLUSTER", "local"),
        project=environment.get("LOCKSTEP_PROJECT", ""),
        node=environment.get("LOCKSTEP_NODE") or platform.node(),
        gpu_uuid=_gpu_uuid(),
        torch_version=torch_version,
        nccl_version=nccl_version,
        queue=queue_of(environment),
        job_class=job_class_of(environment),
        mesh=tuple((mesh or {"dp": rank}).items()),
    )
