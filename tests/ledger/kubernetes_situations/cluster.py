"""The actions of scripts: on a lab by plain HTTP, as kubelets, and on feeds and ledger."""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any
from urllib.parse import quote

import httpx

from .diary import Diary, parse_time
from .manifests import CLUSTER_PATHS, PATHS, Manifest, condition
from .scenario import Part
from .stage import Stage, open_client, run_lab

# Controllers whose watches ended with a server ask again after up to half a minute.
WAIT_SECONDS = 120.0
OURS = frozenset({"feed", "feed-2", "ledger"})
LAB_LABELS = {"kubernetes.io/os": "linux"}


def now_text() -> str:
    """Return this moment as the server writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Cluster:
    """Everything that a script does. Names without a namespace are in the situation's own."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.folder = stage.folder
        self.client = open_client(self.folder / "kubeconfig")
        self.diary = Diary()
        self.nodes: list[str] = []
        self._applied: list[str] = []
        self.namespace = self._open_namespace(name[:60], "own")

    @cached_property
    def second_namespace(self) -> str:
        """Another namespace, which is made for those who ask for it."""
        return self._open_namespace(f"{self.namespace}-b", "second")

    def _open_namespace(self, name: str, side: str) -> str:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self.send("POST", "/api/v1/namespaces", body, accept=(409,))
        path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self._until(lambda: self.client.get(path).status_code == 200, f"account of {name}")
        watching = open_client(self.folder / "kubeconfig")
        self._applied.append(f"/api/v1/namespaces/{name}/pods")
        threading.Thread(target=self.diary.watch, args=(watching, name, side), daemon=True).start()
        return name

    def send(
        self,
        method: str,
        path: str,
        body: Manifest | None = None,
        *,
        accept: tuple[int, ...] = (),
        content: str = "application/json",
    ) -> Manifest:
        """Send a request; raise where it is refused with a status that is not accepted."""
        answer = self.client.request(method, path, json=body, headers={"Content-Type": content})
        if answer.status_code >= 400 and answer.status_code not in accept:
            raise AssertionError(f"{method} {path}: {answer.status_code} {answer.text}")
        found: Manifest = answer.json()
        return found

    def path(self, kind: str, name: str = "", namespace: str = "") -> str:
        group, plural = PATHS.get(kind) or CLUSTER_PATHS[kind]
        scope = f"/namespaces/{namespace or self.namespace}" if kind in PATHS else ""
        return f"/{group}{scope}/{plural}" + (f"/{name}" if name else "")

    def apply(self, manifest: Manifest, *, owner: Manifest | None = None) -> Manifest:
        """Create an object, below an owner where one is given; return what the server made."""
        metadata = manifest["metadata"]
        if owner:
            metadata["ownerReferences"] = [{
                "apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True,
                "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
                "blockOwnerDeletion": False,
            }]  # fmt: skip
        path = self.path(manifest["kind"], namespace=metadata.get("namespace", ""))
        found = self.send("POST", path, manifest)
        name = found["metadata"]["name"]
        self._applied.append(f"{path}/{name}")
        self.diary.at[f"created:{name}"] = parse_time(found["metadata"]["creationTimestamp"])
        return found

    def patch(self, kind: str, name: str, change: Manifest, *, status: bool = False) -> Manifest:
        """Merge a change into an object, or into its status as its controller would."""
        for each in change.get("status", {}).get("conditions", []):
            each.setdefault("lastTransitionTime", now_text())
        path = self.path(kind, name) + ("/status" if status else "")
        return self.send("PATCH", path, change, content="application/merge-patch+json")

    def delete(self, kind: str, name: str) -> None:
        self.send("DELETE", self.path(kind, name), {"propagationPolicy": "Background"})

    def read(self, kind: str, name: str) -> Manifest:
        return self.send("GET", self.path(kind, name))

    def list_pods(self, prefix: str) -> Sequence[Manifest]:
        """Return the pods whose names begin so, by name."""
        return self.diary.list_pods(prefix)

    def wait_pods(self, prefix: str, count: int, phase: str = "Running") -> Sequence[Manifest]:
        found: list[Manifest] = []

        def is_so() -> bool:
            pods = self.list_pods(prefix)
            found[:] = [pod for pod in pods if pod["status"].get("phase") == phase]
            return len(found) == count

        if not self.diary.wait_for(is_so, WAIT_SECONDS):
            raise AssertionError(f"after {WAIT_SECONDS:.0f} s not {count} pods {prefix}* {phase}")
        return found

    def wait_condition(self, kind: str, name: str, condition: str) -> None:
        """Wait until a condition of an object is true."""

        def is_so() -> bool:
            found = self.read(kind, name).get("status", {}).get("conditions", [])
            return any(each["type"] == condition and each["status"] == "True" for each in found)

        self._until(is_so, f"{kind} {name} {condition}")

    def wait_gone(self, kind: str, name: str) -> None:
        """Wait until an object is no longer there."""
        path = self.path(kind, name)
        self._until(lambda: self.client.get(path).status_code == 404, f"{kind} {name} is gone")

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def note(self, name: str) -> None:
        """Write the server's time into the diary."""
        date = self.client.get("/version").headers["Date"]
        self.diary.at[name] = parsedate_to_datetime(date).timestamp()

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        self.stage.until(is_so, what, WAIT_SECONDS, pause=0.15)

    def compact(self) -> None:
        """A server that starts anew has no revision of before in its memory."""
        self.note("compacted")
        for number in range(3):
            name = f"revision-{number}-{time.monotonic_ns()}"
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
            self.apply(account)
        self.stop("apiserver")
        self.start("apiserver")

    def close(self) -> None:
        """Deletes what was applied; namespaces stay, whose end asks the server for every kind."""
        for name in self.nodes:
            self.remove_node(name)
        self.diary.close()
        by_force: Manifest = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        for path in reversed(self._applied):  # the pods of the namespaces after their owners
            self.send("DELETE", path, by_force, accept=(404, 409))
        self.client.close()

    def set_pod(self, name: str, status: Manifest) -> Manifest:
        """Write the status of a pod as its kubelet would."""
        path = self.path("Pod", name) + "/status"
        content = "application/strategic-merge-patch+json"
        return self.send("PATCH", path, {"status": status}, content=content)

    def describe_containers(self, name: str, **state: Any) -> list[Manifest]:
        """Return the statuses of all containers of a pod, with the same state."""
        pod = self.read("Pod", name)
        before = {each["name"]: each for each in pod["status"].get("containerStatuses", [])}
        return [
            {"name": each["name"], "image": each["image"], "imageID": "", "ready": False,
             "started": "running" in state, "state": state,
             "restartCount": before.get(each["name"], {}).get("restartCount", 0)}
            for each in pod["spec"]["containers"]
        ]  # fmt: skip

    def end_pod(
        self, name: str, exit_code: int = 0, reason: str = "", *, disruption: str = ""
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
            "phase": "Failed" if exit_code else "Succeeded",
            "containerStatuses": self.describe_containers(name, terminated=terminated),
        }
        if disruption:
            change["conditions"] = [
                condition("DisruptionTarget", reason=disruption) | {"lastTransitionTime": now}
            ]
        self.set_pod(name, change)

    def add_node(self, name: str, gpus: int) -> None:
        """Add a node for this situation: its pods select it by the label kubernetes.io/hostname."""
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

    def remove_node(self, name: str) -> None:
        self.send("DELETE", self.path("Node", name), accept=(404,))

    def taint_node(self, name: str, key: str, effect: str = "NoExecute") -> None:
        body = {"spec": {"taints": [{"key": key, "effect": effect}]}}
        content = "application/strategic-merge-patch+json"
        self.send("PATCH", self.path("Node", name), body, content=content)

    def add_kind(self, name: str) -> None:
        """Define a kind as PLURAL.GROUP."""
        run_lab("kinds", str(self.folder), name)

    def remove_kind(self, name: str) -> None:
        """Delete the definition of a kind with all its objects."""
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        self.send("DELETE", path, accept=(404,))
        self._until(lambda: self.client.get(path).status_code == 404, f"{name} is gone")

    def find_jobs(self, name: str) -> list[dict[str, Any]]:
        """Records whose id has this name in it."""
        jobs = self.stage.jobs()
        # An id holds 200 characters: of a longer name it has the begin.
        return [job for job in jobs if name[:100] in job["job_id"]]

    def read_job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.stage.read(f"/api/jobs/{quote(job_id, safe='')}?cluster=east")
        return found

    def wait_recorded(self, name: str, *, is_open: bool = True) -> None:
        """Wait until the ledger has a running (or an ended) job of this name."""
        status = "running" if is_open else "finished"

        def is_so() -> bool:
            return any(job["status"] == status for job in self.find_jobs(name))

        self._until(is_so, f"the ledger has a job {name} that is {status}")

    def stop(self, part: Part) -> None:
        """Stop a part and wait until it has ended."""
        self._end(part, signal.SIGTERM)

    def kill(self, part: Part) -> None:
        self._end(part, signal.SIGKILL)

    def _end(self, part: Part, number: signal.Signals) -> None:
        if part in OURS:
            self.stage.programs[part].end(number)
        else:
            run_lab("stop" if number == signal.SIGTERM else "kill", str(self.folder), part)

    def start(self, part: Part) -> None:
        """Start a part that was stopped, and wait until it serves."""
        if part in OURS:
            self.stage.start(part)
            return
        run_lab("start", str(self.folder), part)
        if part == "apiserver":
            # They wait for up to a minute before they ask it again, unless they begin anew.
            clients = ("controllers", "scheduler", "kwok")
            run_lab("kill", str(self.folder), *clients)
            run_lab("start", str(self.folder), *clients)

    def set_clock_offset(self, part: Part, seconds: float) -> None:
        """Set the clock that a part sees so far ahead (or, negative, behind) of the server's."""
        self.stage.offsets[part] = seconds
        if self.stage.programs[part].process is not None:
            self.kill(part)
            self.start(part)

    def forbid(self, name: str) -> None:
        """Take the right to list and watch PLURAL.GROUP from the feed's account."""
        plural, _, group = name.partition(".")
        rules = [
            _without(rule, plural) if group in rule["apiGroups"] else rule
            for rule in self.stage.rules
        ]
        self.rules_before = self.stage.rules
        self.stage.grant([rule for rule in rules if rule["resources"]])
        time.sleep(0.5)

    def allow_again(self) -> None:
        """Give back what `forbid` took."""
        self.stage.grant(self.rules_before)

    def report_from_launcher(self, name: str, node: str, outcome: str, alias: str) -> None:
        now = time.time()
        fields: dict[str, Any] = {"outcome": outcome}
        start: dict[str, Any] = {"num_nodes": 1, "num_gpus": 1, "aliases": [alias]}
        events = [
            {"id": f"{name}-{kind}", "kind": kind, "job_id": name, "attempt": 0, "time": moment,
             "fields": each}
            for kind, moment, each in (
                ("job_started", now - 1, start),
                ("attempt_started", now - 1, {"num_gpus": 1}),
                ("attempt_ended", now, fields),
                ("job_finished", now, fields),
            )
        ]  # fmt: skip
        body = {"version": 1, "cluster": "east", "node": node, "events": events}
        headers = {"Authorization": "Bearer launcher-token-of-tests"}
        answer = httpx.post(f"{self.stage.url}/api/events", json=body, headers=headers)
        assert answer.status_code == 200, answer.text

    def rotate_token(self) -> None:
        """Write a new token into the feed's file and revoke the one before."""
        self.stage.renew_token()
        self.stage.end_token(self.stage.before)

    def revoke_token(self) -> None:
        """Revoke the feed's token; nothing replaces it until `rotate_token`."""
        self.stage.end_token(self.stage.holder)


def _without(rule: Manifest, plural: str) -> Manifest:
    return rule | {"resources": [each for each in rule["resources"] if each != plural]}
