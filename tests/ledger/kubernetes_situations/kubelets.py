"""What kubelets, people who drain nodes and lost power do to a lab's nodes and pods."""

import sys
import time
from pathlib import Path

from .cluster import LabCluster, now_text, run_lab
from .diary import parse_time
from .manifests import condition
from .scenario import Manifest, Part

LAB_LABELS = {"kubernetes.io/os": "linux"}


class ControlPlane(LabCluster):
    """All actions of a Cluster but those on feed and ledger, which say that nobody is there."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name)
        self.nodes: list[str] = []

    def end_pod(
        self,
        name: str,
        exit_code: int = 0,
        reason: str = "",
        *,
        pod_reason: str = "",
        message: str = "",
        disruption: str = "",
    ) -> None:
        now, status = now_text(), self.read("Pod", name)["status"]
        states = [each["state"].get("running", {}) for each in status.get("containerStatuses", [])]
        started = [state["startedAt"] for state in states if state]
        terminated = {
            "exitCode": exit_code,
            "reason": reason or ("Error" if exit_code else "Completed"),
            "startedAt": started[0] if started else status.get("startTime", now),
            "finishedAt": now,
        }
        change: Manifest = {
            "phase": "Failed" if exit_code or pod_reason else "Succeeded",
            "containerStatuses": self.describe_containers(name, terminated=terminated),
        }
        if pod_reason:
            change |= {"reason": pod_reason, "message": message}
        elif message:
            for each in change["containerStatuses"]:
                each["state"]["terminated"]["message"] = message
        if disruption:
            change["conditions"] = [
                condition("DisruptionTarget", reason=disruption) | {"lastTransitionTime": now}
            ]
        self.set_pod(name, change)

    def start_pod(self, name: str) -> None:
        now = now_text()
        statuses = self.describe_containers(name, running={"startedAt": now})
        ready = condition("Ready", reason="") | {"lastTransitionTime": now}
        change = {"phase": "Running", "startTime": now, "conditions": [ready]}
        self.set_pod(name, change | {"containerStatuses": statuses})

    def restart_container(
        self, name: str, *, exit_code: int, reason: str = "Error", pause: float
    ) -> None:
        status = self.read("Pod", name)["status"]["containerStatuses"][0]
        ended = {
            "exitCode": exit_code, "reason": reason, "finishedAt": now_text(),
            "startedAt": status["state"]["running"]["startedAt"],
        }  # fmt: skip
        count = status["restartCount"] + 1
        rest = {
            "name": status["name"], "image": status["image"], "imageID": "", "ready": False,
            "lastState": {"terminated": ended},
        }  # fmt: skip
        waiting = rest | {"restartCount": count - 1, "state": {"terminated": ended}}
        self._replace_status(name, waiting | {"lastState": {}})
        if pause:
            backing_off = rest | {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}
            self._replace_status(name, backing_off | {"restartCount": count - 1})
            time.sleep(pause)
        running = {"running": {"startedAt": now_text()}}
        self._replace_status(name, rest | {"restartCount": count, "state": running, "ready": True})

    def _replace_status(self, name: str, status: Manifest) -> None:
        """Write the status of a pod's only container in place of the one before."""
        body = {"status": {"containerStatuses": [status]}}
        path = self.path("Pod", name) + "/status"
        self.send("PATCH", path, body, content="application/merge-patch+json")

    def evict(self, name: str) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": self.namespace},
        }
        self.send("POST", self.path("Pod", name) + "/eviction", body)

    def add_node(self, name: str, gpus: int) -> None:
        size = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        node = {
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"},
                         "labels": LAB_LABELS | {"kubernetes.io/hostname": name}},
            "status": {"allocatable": size, "capacity": size},
        }  # fmt: skip
        self.send("POST", self.path("Node"), node)
        self.nodes.append(name)
        self.wait_condition("Node", name, "Ready")

    def silence_node(self, name: str) -> None:
        content = "application/strategic-merge-patch+json"
        silent = {"metadata": {"annotations": {"lab/silent": "true"}}}
        for pod in self.list_pods(""):
            if pod["spec"].get("nodeName") == name:
                path = self.path("Pod", pod["metadata"]["name"])
                self.send("PATCH", path, silent, content=content)
        self.send("PATCH", self.path("Node", name), silent, content=content)
        # kwok still renews the lease, so the node's controller would not find out by itself.
        unknown = condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting")
        unknown["lastTransitionTime"] = now_text()
        body = {"status": {"conditions": [unknown]}}
        self.send("PATCH", self.path("Node", name) + "/status", body, content=content)

    def remove_node(self, name: str) -> None:
        self.send("DELETE", self.path("Node", name), accept=(404,))

    def taint_node(self, name: str, key: str, effect: str = "NoExecute") -> None:
        body = {"spec": {"taints": [{"key": key, "effect": effect}]}}
        content = "application/strategic-merge-patch+json"
        self.send("PATCH", self.path("Node", name), body, content=content)

    def add_kind(self, name: str) -> None:
        run_lab("kinds", str(self.folder), name)

    def remove_kind(self, name: str) -> None:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        self.send("DELETE", path, accept=(404,))
        self._until(lambda: self.client.get(path).status_code == 404, f"{name} is gone")

    def close(self) -> None:
        for name in self.nodes:
            self.remove_node(name)
        super().close()

    def issue_token(self, account: str, holder: str) -> str:
        """Return a token of a service account that ends when the secret `holder` is deleted."""
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": holder}}
        found = self.send("POST", f"/api/v1/namespaces/{self.namespace}/secrets", secret)
        reference = {"kind": "Secret", "apiVersion": "v1", "name": holder}
        reference["uid"] = found["metadata"]["uid"]
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"boundObjectRef": reference, "expirationSeconds": 3600},
        }
        answer = self.send("POST", self.path("ServiceAccount", account) + "/token", body)
        return str(answer["status"]["token"])

    def end_token(self, holder: str) -> None:
        """Delete the secret of a token; the server refuses it within ten seconds."""
        self.send("DELETE", f"/api/v1/namespaces/{self.namespace}/secrets/{holder}", accept=(404,))

    def age_of(self, kind: str, name: str) -> float:
        """Return the seconds since an object was created."""
        return time.time() - parse_time(self.read(kind, name)["metadata"]["creationTimestamp"])

    def set_clock_offset(self, part: Part, seconds: float) -> None:
        self._skip(f"the clock of {part} is not moved by {seconds} s")

    def forbid(self, name: str) -> None:
        self._skip(f"{name} is not forbidden")

    def allow(self, name: str) -> None:
        self._skip(f"{name} was not forbidden")

    def report_from_launcher(
        self, name: str, outcome: str, failure_class: str = "", cause: str = "", alias: str = ""
    ) -> None:
        self._skip(f"no launcher says {outcome} {failure_class} {cause} of {name} {alias}")

    def rotate_token(self) -> None:
        self._skip("no token is rotated")

    def revoke_token(self) -> None:
        self._skip("no token is revoked")

    def stop(self, part: Part) -> None:
        if self._is_ours(part):
            super().stop(part)

    def kill(self, part: Part) -> None:
        if self._is_ours(part):
            super().kill(part)

    def start(self, part: Part) -> None:
        if self._is_ours(part):
            super().start(part)

    def _is_ours(self, part: Part) -> bool:
        if part in {"feed", "feed-2", "ledger"}:
            self._skip(f"there is no {part}")
            return False
        return True

    def _skip(self, why: str) -> None:
        sys.stderr.write(f"{self.namespace}: {why}\n")
