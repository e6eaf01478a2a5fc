"""Objects as a server has them, as short as the feed needs them."""

from datetime import UTC, datetime
from typing import Any

NOW = 1_795_000_000.0


def moment(seconds: float) -> str:
    """A time so many seconds after NOW, as the server writes it."""
    return datetime.fromtimestamp(NOW + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def meta(
    name: str, created: float = 0.0, owner: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Metadata; the uid follows from the name."""
    found: dict[str, Any] = {
        "name": name,
        "namespace": "team-a",
        "uid": f"uid-{name}",
        "creationTimestamp": moment(created),
    }
    if owner is not None:
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
        reference |= {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
        found["ownerReferences"] = [reference]
    return found | more


def job(name: str, created: float = 0.0, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": meta(name, created),
        "spec": {"template": {"spec": {"containers": [container(1)]}}}, "status": status,
    }  # fmt: skip


def condition(name: str, seconds: float = 9.0, status: str = "True", **more: str) -> dict[str, str]:
    return {"type": name, "status": status, "lastTransitionTime": moment(seconds), **more}


def custom(
    kind: str, version: str, name: str = "a", owner: Any = None, **parts: Any
) -> dict[str, Any]:
    """An object of an operator; ``parts`` are its spec and status."""
    return {"apiVersion": version, "kind": kind, "metadata": meta(name, 0.0, owner), **parts}


def container(gpus: int, name: str = "train", resource: str = "nvidia.com/gpu") -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {resource: str(gpus)}}}


def pod(
    name: str,
    owner: dict[str, Any] | None = None,
    *,
    created: float = 0.0,
    begin: float | None = None,
    end: float | None = None,
    exit_code: int = 0,
    gpus: int = 2,
    restarts: int = 0,
    last: tuple[float, float, int] | None = None,
    why: str = "",
    **status: Any,
) -> dict[str, Any]:
    """A pod with a container that ran from begin to end, or waits; ``why`` is its own reason."""
    state: dict[str, Any] = {}
    phase = "Pending"
    if begin is not None and end is None:
        state, phase = {"running": {"startedAt": moment(begin)}}, "Running"
    elif begin is not None and end is not None:
        ended = {
            "startedAt": moment(begin),
            "finishedAt": moment(end),
            "exitCode": exit_code,
            "reason": why,
        }
        state, phase = {"terminated": ended}, "Failed" if exit_code else "Succeeded"
    elif why:
        state = {"waiting": {"reason": why}}
    each: dict[str, Any] = {"name": "train", "state": state, "restartCount": restarts}
    if last is not None:
        ended = {"startedAt": moment(last[0]), "finishedAt": moment(last[1]), "exitCode": last[2]}
        each["lastState"] = {"terminated": ended}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": meta(name, created, owner),
        "spec": {"containers": [container(gpus)], "nodeName": "gpu-1"},
        "status": {"phase": phase, "containerStatuses": [each], **status},
    }  # fmt: skip
