"""Queue and class of the job, as the user or the scheduler gives them in the environment.

Kueue keeps both in labels of the pod, which the downward API gives as LOCKSTEP_QUEUE and
LOCKSTEP_JOB_CLASS (docs/agent.md).
"""

from collections.abc import Mapping


def queue_of(environment: Mapping[str, str]) -> str:
    """LOCKSTEP_QUEUE, else Slurm's partition; empty where there is neither."""
    return environment.get("LOCKSTEP_QUEUE") or environment.get("SLURM_JOB_PARTITION", "")


def job_class_of(environment: Mapping[str, str]) -> str:
    """LOCKSTEP_JOB_CLASS, else Slurm's quality of service; empty where there is neither."""
    return environment.get("LOCKSTEP_JOB_CLASS") or environment.get("SLURM_JOB_QOS", "")
