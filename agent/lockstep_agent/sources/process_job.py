"""The job that a process belongs to: by its control group (Slurm) and by its environment."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

# v1 .../slurm_node/uid_1000/job_42/step_0/task_3, v2 .../slurmstepd.scope/job_42/step_0/user/task_3
_SLURM = re.compile(r"slurm[^:\n]*?/job_(?P<job>\d{1,12})(?:/step_(?P<step>[\w.-]{1,40}))?")
_HIDEPID = re.compile(r"hidepid=(?:[124]|noaccess|invisible|ptraceable)")
_MAX_BYTES = 256 << 10
_MAX_CHARACTERS = 100
_VARIABLES = ("LOCKSTEP_JOB_ID", "RANK", "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_ID")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessJob:
    """Job, rank and Slurm step of a process; empty where the process has none.

    Attributes:
        is_refused: whether its environment may not be read.
    """

    job_id: str = ""
    rank: str = ""
    slurm_job: str = ""
    slurm_step: str = ""
    is_refused: bool = False


def hiding_words(procfs: Path) -> str:
    """A sentence where /proc hides the processes of other users; empty where it does not."""
    try:
        mounts = (procfs / "self" / "mounts").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    options = [f[3].split(",") for line in mounts if (f := line.split())[2:3] == ["proc"]]
    hidden = [word for words in options for word in words if _HIDEPID.fullmatch(word)]
    if not hidden:
        return ""
    return (
        f"{procfs} is mounted with {hidden[0]}: without root, or the group of its option gid, the"
        " jobs and ranks of processes on GPUs are not seen, only those of pages and job files"
    )


def slurm_job_step(cgroup: str) -> tuple[str, str]:
    """Job and step in the text of a ``/proc/PID/cgroup``; empty outside of Slurm."""
    match = _SLURM.search(cgroup)
    return (match["job"], match["step"] or "") if match else ("", "")


def read_process_job(procfs: Path, pid: int) -> ProcessJob:
    """The job of a process; all fields are empty for a process that has ended.

    The environment of another user's process may be refused; everybody may read its cgroup.
    """
    try:
        with (procfs / str(pid) / "cgroup").open("rb") as file:
            job, step = slurm_job_step(file.read(_MAX_BYTES).decode(errors="replace"))
    except OSError:
        return ProcessJob()
    environment: dict[str, str] = {}
    is_refused = False
    try:
        environment = read_environment(procfs / str(pid), _VARIABLES)
    except PermissionError:
        is_refused = True
    except OSError:
        return ProcessJob()
    return ProcessJob(
        is_refused=is_refused,
        job_id=environment.get("LOCKSTEP_JOB_ID", ""),
        # srun without torchrun sets only its own name for the rank
        rank=environment.get("RANK") or environment.get("SLURM_PROCID", ""),
        slurm_job=job or environment.get("SLURM_JOB_ID", ""),
        slurm_step=step or environment.get("SLURM_STEP_ID", ""),
    )


def read_environment(
    process: Path, names: Collection[str], max_characters: int = _MAX_CHARACTERS
) -> dict[str, str]:
    """Some variables of a process by its folder in /proc, each shortened.

    Raises:
        PermissionError: it may not be read.
        OSError: the process has ended.
    """
    with (process / "environ").open("rb") as file:
        block = file.read(_MAX_BYTES).decode(errors="replace")
    entries = (entry.partition("=") for entry in block.split("\0"))
    return {name: value[:max_characters] for name, _, value in entries if name in names}
