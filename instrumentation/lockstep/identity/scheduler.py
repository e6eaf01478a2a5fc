"""Id, queue and class of the job, as the user, Slurm or Kubernetes gives them.

Kueue keeps queue and class in labels of the pod, which the downward API gives as LOCKSTEP_QUEUE and
LOCKSTEP_JOB_CLASS (docs/agent.md). A volume at /etc/lockstep/pod with a file ``labels`` names the
owner of every kind of pod; LOCKSTEP_OBJECT_NAME and LOCKSTEP_OBJECT_UID that of a kind that is not
listed here (docs/pods.md).
"""

import re
from collections.abc import Mapping
from pathlib import Path

from lockstep_records.files.jobs import JOB_ID, fit_job_id
from lockstep_records.text.host_lists import names_host

_POD_INFO = Path("/etc/lockstep/pod")
_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MAX_BYTES = 64 << 10
_UID_CHARACTERS = 8
_JOB_ID_LABEL = "lockstep/job-id"
# Labels with the name and the uid of the job, the outermost owner first: the pods of a JobSet are
# those of Jobs too, and those of a TrainJob are of its JobSet. Not every kind tells its uid.
_KINDS = (
    ("jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/jobset-uid"),
    ("training.kubeflow.org/job-name", ""),
    ("ray.io/cluster", ""),
    ("leaderworkerset.sigs.k8s.io/name", ""),
    ("volcano.sh/job-name", ""),
    ("batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid"),
)


def pod_job_of(environment: Mapping[str, str]) -> str:
    """Id of the job that owns the pod, by namespace, name and uid; empty where nothing says it."""
    labels = _labels(environment)
    if JOB_ID.fullmatch(labels.get(_JOB_ID_LABEL, "")):
        return labels[_JOB_ID_LABEL]
    name, uid = _owner(environment, labels)
    if not name:
        return ""
    full = ".".join(filter(None, (pod_namespace_of(environment), name)))
    return fit_job_id(f"{full}-{uid[:_UID_CHARACTERS]}" if uid else full)


def pod_alias_of(environment: Mapping[str, str]) -> str:
    """The job by its uid, as the feed of Kubernetes says it; or empty."""
    uid = _owner(environment, _labels(environment))[1]
    return f"kubernetes:{uid}" if uid else ""


def pod_namespace_of(environment: Mapping[str, str]) -> str:
    """Namespace of the pod, by LOCKSTEP_NAMESPACE or its account; empty outside of a pod."""
    return environment.get("LOCKSTEP_NAMESPACE") or read_text_of(_ACCOUNT_NAMESPACE).strip()


def _owner(environment: Mapping[str, str], labels: Mapping[str, str]) -> tuple[str, str]:
    if name := environment.get("LOCKSTEP_OBJECT_NAME", ""):
        return name, environment.get("LOCKSTEP_OBJECT_UID", "")
    pairs = ((labels.get(name, ""), labels.get(uid, "")) for name, uid in _KINDS)
    return next((pair for pair in pairs if pair[0]), ("", ""))


def _labels(environment: Mapping[str, str]) -> dict[str, str]:
    folder = Path(environment.get("LOCKSTEP_POD_INFO") or _POD_INFO)
    pairs = (line.partition("=") for line in read_text_of(folder / "labels").splitlines())
    return {name: value.strip('"') for name, _, value in pairs}


def read_text_of(path: Path) -> str:
    """The text of a small file of the system; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""


ALLOCATION = "LOCKSTEP_ALLOCATION"
"""Slurm's job for which LOCKSTEP_JOB_ID was set: sbatch hands both on to jobs that a job submits.
"""
_ID = re.compile(r"[0-9]{1,12}")
_MAX_COMPONENTS = 128


def slurm_job_of(environment: Mapping[str, str]) -> str:
    """Slurm's id of the job as sacct prints it, the same on all nodes and in all steps.

    4242, 4242_7 for the task 7 of an array, 4242+1 for the second component of a heterogeneous
    job; empty outside of Slurm.
    """
    job = environment.get("SLURM_JOB_ID", "")
    array = environment.get("SLURM_ARRAY_JOB_ID", "")
    task = environment.get("SLURM_ARRAY_TASK_ID", "")
    if not _ID.fullmatch(job):
        return ""
    if _ID.fullmatch(array) and _ID.fullmatch(task):
        return f"{array}_{task}"
    leader = environment.get("SLURM_JOB_ID_HET_GROUP_0", "")
    if _ID.fullmatch(leader):
        return f"{leader}+{_component(job, environment)}"
    return job


def alias_of(environment: Mapping[str, str]) -> str:
    """Slurm's id with the name of its cluster, as the feed of its accounting says it; or empty."""
    job, cluster = slurm_job_of(environment), environment.get("SLURM_CLUSTER_NAME", "")
    return f"slurm:{cluster}:{job}" if job and cluster else ""


def given_job_id(environment: Mapping[str, str]) -> str:
    """LOCKSTEP_JOB_ID, unless it was meant for the allocation that submitted this one; or empty."""
    slurm_job = environment.get("SLURM_JOB_ID", "")
    is_other = environment.get(ALLOCATION, slurm_job) != slurm_job
    return "" if is_other else environment.get("LOCKSTEP_JOB_ID", "")


def queue_of(environment: Mapping[str, str]) -> str:
    """LOCKSTEP_QUEUE, else Slurm's partition; empty where there is neither."""
    return environment.get("LOCKSTEP_QUEUE") or environment.get("SLURM_JOB_PARTITION", "")


def job_class_of(environment: Mapping[str, str]) -> str:
    """LOCKSTEP_JOB_CLASS, else Slurm's quality of service; empty where there is neither."""
    return environment.get("LOCKSTEP_JOB_CLASS") or environment.get("SLURM_JOB_QOS", "")


def project_of(environment: Mapping[str, str]) -> str:
    """LOCKSTEP_PROJECT, else Slurm's account; empty where there is neither."""
    return environment.get("LOCKSTEP_PROJECT") or environment.get("SLURM_JOB_ACCOUNT", "")


def _component(job: str, environment: Mapping[str, str]) -> int:
    """Number of the component of a heterogeneous job in which this process runs.

    Ranks of one step over several components all have the id of the first: their node tells.
    """
    numbers = range(min(int(environment.get("SLURM_HET_SIZE") or 1), _MAX_COMPONENTS))
    node = environment.get("SLURMD_NODENAME", "")
    for number in numbers:
        if number and environment.get(f"SLURM_JOB_ID_HET_GROUP_{number}") == job:
            return number
    for number in numbers:
        if names_host(environment.get(f"SLURM_JOB_NODELIST_HET_GROUP_{number}", ""), node):
            return number
    return 0
