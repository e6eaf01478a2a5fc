"""Whose a process is: by its control group (Slurm) and by its environment."""

import re
from dataclasses import dataclass
from pathlib import Path

# v1 .../slurm_node/uid_1000/job_42/step_0/task_3, v2 .../slurmstepd.scope/job_42/step_0/user/task_3
_SLURM = re.compile(r"slurm[^:\n]*?/job_(?P<job>\d{1,12})(?:/step_(?P<step>[\w.-]{1,40}))?")
_MOST_BYTES = 256 << 10
_NAMES = ("LOCKSTEP_JOB_ID", "RANK", "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_ID")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessJob:
    """What a process tells of its job; empty where it does not."""

    job_id: str = ""
    rank: str = ""
    slurm_job: str = ""
    slurm_step: str = ""


def slurm_job_step(cgroup: str) -> tuple[str, str]:
    """Job and step in the text of a ``/proc/PID/cgroup``, empty where it is none of Slurm's."""
    found = _SLURM.search(cgroup)
    return (found["job"], found["step"] or "") if found else ("", "")


def read_process_job(procfs: Path, pid: int) -> ProcessJob:
    """Whose a process is; one that has ended is nobody's.

    Raises:
        PermissionError: the environment of processes may not be read.
    """
    try:
        with (procfs / str(pid) / "cgroup").open("rb") as file:
            job, step = slurm_job_step(file.read(_MOST_BYTES).decode(errors="replace"))
        with (procfs / str(pid) / "environ").open("rb") as file:
            told = _environment(file.read(_MOST_BYTES))
    except PermissionError:
        raise
    except OSError:
        return ProcessJob()
    return ProcessJob(
        job_id=told.get("LOCKSTEP_JOB_ID", ""),
        rank=told.get("RANK") or told.get("SLURM_PROCID", ""),
        slurm_job=job or told.get("SLURM_JOB_ID", ""),
        slurm_step=step or told.get("SLURM_STEP_ID", ""),
    )


def _environment(block: bytes) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in block.decode(errors="replace").split("\0"))
    return {name: value[:100] for name, _, value in pairs if name in _NAMES}
