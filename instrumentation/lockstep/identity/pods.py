"""The statements of Kubernetes on the pod in which a rank runs, by the downward API.

A volume at /etc/lockstep/pod with a file ``labels`` serves every kind of job; LOCKSTEP_OBJECT_NAME
and LOCKSTEP_OBJECT_UID serve a kind that is not listed here (docs/pods.md).
"""

from collections.abc import Mapping
from pathlib import Path

from lockstep_records.files.jobs import JOB_ID, fit_job_id

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
