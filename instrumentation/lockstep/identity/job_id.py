"""The id of a job: the same on every rank and node of it, and on none of another job.

The first of these counts that is there: what the user says, what the scheduler says, torchrun's run
id, the address at which all ranks meet, and at last the launching process, for a job of one node.
"""

import re
from collections.abc import Mapping
from hashlib import blake2b
from ipaddress import ip_address
from pathlib import Path

from lockstep.identity.ranks import RankPosition, launching_pid
from lockstep.identity.requeues import process_key, read_integer
from lockstep.identity.scheduler import (
    given_job_id,
    pod_job_of,
    pod_namespace_of,
    read_text_of,
    slurm_job_of,
)
from lockstep_records.files.jobs import check_job_id, fit_job_id

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
