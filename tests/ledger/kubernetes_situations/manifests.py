"""Objects as people and operators write them, as short as the server admits."""

from collections.abc import Sequence
from typing import Any

Manifest = dict[str, Any]

GPU = "nvidia.com/gpu"

# Kind: path of its group and version, plural.
PATHS = {
    "Pod": ("api/v1", "pods"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "Job": ("apis/batch/v1", "jobs"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
    "ResourceClaimTemplate": ("apis/resource.k8s.io/v1", "resourceclaimtemplates"),
    "JobSet": ("apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    "TrainJob": ("apis/trainer.kubeflow.org/v1alpha1", "trainjobs"),
    "PaddleJob": ("apis/kubeflow.org/v1", "paddlejobs"),
    "MPIJob": ("apis/kubeflow.org/v2beta1", "mpijobs"),
    "Workload": ("apis/kueue.x-k8s.io/v1beta1", "workloads"),
    "Trainium": ("apis/example.com/v1", "trainiums"),
}
CLUSTER_PATHS = {
    "Node": ("api/v1", "nodes"),
    "PriorityClass": ("apis/scheduling.k8s.io/v1", "priorityclasses"),
    "DeviceClass": ("apis/resource.k8s.io/v1", "deviceclasses"),
    "ResourceSlice": ("apis/resource.k8s.io/v1", "resourceslices"),
}


def template(
    gpus: int = 1,
    *,
    lab: dict[str, Any] | None = None,
    node: str = "",
    labels: dict[str, str] | None = None,
    restart: str = "Never",
    **spec: Any,
) -> Manifest:
    """Return a pod template; `lab` has the annotations that direct the pod's life."""
    directed = {f"lab/{key}": str(value) for key, value in (lab or {}).items()}
    asks = {"resources": {"limits": {GPU: str(gpus)}}} if gpus else {}
    container: Manifest = {"name": "train", "image": "train"} | asks
    chosen = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    return {
        "metadata": {"annotations": directed, "labels": labels or {}},
        "spec": {
            "restartPolicy": restart,
            "containers": [container],
            "securityContext": {"runAsUser": 1042},
        }
        | chosen
        | spec,
    }


def job(
    name: str,
    gpus: int = 1,
    *,
    pods: int = 1,
    run: float | Sequence[float] | None = None,
    lab: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    node: str = "",
    **spec: Any,
) -> Manifest:
    """Return an indexed Job; `run` has the seconds of its pods, which run for ever without it."""
    directed = dict(lab or {})
    if isinstance(run, Sequence):
        directed |= {f"run-seconds-{index}": seconds for index, seconds in enumerate(run)}
        directed["run-seconds"] = run[0]
    elif run is not None:
        directed["run-seconds"] = run
    body = {
        "completions": pods,
        "parallelism": pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": template(gpus, lab=directed, node=node),
    }
    return manifest("batch/v1", "Job", name, body | spec, labels)


def pod(
    name: str,
    gpus: int = 1,
    *,
    lab: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    node: str = "",
    **spec: Any,
) -> Manifest:
    body = template(gpus, lab=lab, node=node, labels=labels, **spec)
    body["metadata"]["name"] = name
    return {"apiVersion": "v1", "kind": "Pod", **body}


def manifest(
    version: str, kind: str, name: str, spec: Manifest, labels: dict[str, str] | None = None
) -> Manifest:
    metadata: Manifest = {"name": name}
    if labels:
        metadata["labels"] = dict(labels)
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def custom(
    kind: str, name: str, spec: Manifest | None = None, labels: dict[str, str] | None = None
) -> Manifest:
    """Return an object of a kind that an operator would serve."""
    version = PATHS[kind][0].removeprefix("apis/")
    return manifest(version, kind, name, spec or {}, labels)


def condition(name: str, status: str = "True", reason: str = "") -> Manifest:
    """Return a condition without its time, which the cluster fills in."""
    return {"type": name, "status": status, "reason": reason or name, "message": ""}
