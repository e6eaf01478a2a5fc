"""The actions of scripts on a lab, by plain HTTP; parts of Lockstep are left to a subclass."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import yaml

from .diary import Diary, parse_time
from .manifests import CLUSTER_PATHS, PATHS
from .scenario import Manifest, Part

LAB = Path(__file__).parents[3] / "tests/labs/kubernetes-lab/lab.py"
# Controllers whose watches ended with a server ask again after up to half a minute.
WAIT_SECONDS = 120.0
FINISHED = ("Complete", "Failed")


def run_lab(*arguments: str) -> None:
    """Run a command of the lab."""
    subprocess.run([sys.executable, str(LAB), *arguments], check=True, timeout=180)


def open_client(kubeconfig: Path) -> httpx.Client:
    """Return a client of the server as its administrator."""
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    return httpx.Client(
        base_url=cluster["server"],
        headers={"Authorization": f"Bearer {user['token']}"},
        verify=False,  # noqa: S501  # loopback, and the certificate is made anew for each lab
        timeout=15,
    )


def now_text() -> str:
    """Return this moment as the server writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class LabCluster:
    """A Cluster of one lab; feed and ledger are `LedgerParts` of the integrator's subclass."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.client = open_client(folder / "kubeconfig")
        self.diary = Diary()
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
        """Return the path of a kind or of one object; Volcano's Job is VolcanoJob."""
        group, plural = PATHS.get(kind) or CLUSTER_PATHS[kind]
        scope = f"/namespaces/{namespace or self.namespace}" if kind in PATHS else ""
        return f"/{group}{scope}/{plural}" + (f"/{name}" if name else "")

    def apply(self, manifest: Manifest, *, owner: Manifest | None = None) -> Manifest:
        metadata = manifest["metadata"]
        if owner:
            metadata["ownerReferences"] = [{
                "apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True,
                "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
                "blockOwnerDeletion": False,
            }]  # fmt: skip
        is_volcano = manifest["apiVersion"].startswith("batch.volcano.sh/")
        kind = "VolcanoJob" if is_volcano else manifest["kind"]
        path = self.path(kind, namespace=metadata.get("namespace", ""))
        found = self.send("POST", path, manifest)
        name = found["metadata"]["name"]
        self._applied.append(f"{path}/{name}")
        self.diary.at[f"created:{name}"] = parse_time(found["metadata"]["creationTimestamp"])
        return found

    def patch(self, kind: str, name: str, change: Manifest, *, status: bool = False) -> Manifest:
        for condition in change.get("status", {}).get("conditions", []):
            condition.setdefault("lastTransitionTime", now_text())
        path = self.path(kind, name) + ("/status" if status else "")
        return self.send("PATCH", path, change, content="application/merge-patch+json")

    def delete(
        self, kind: str, name: str, *, propagation: str = "Background", by_force: bool = False
    ) -> None:
        body: Manifest = {"propagationPolicy": propagation}
        self.send(
            "DELETE", self.path(kind, name), body | ({"gracePeriodSeconds": 0} if by_force else {})
        )

    def read(self, kind: str, name: str) -> Manifest:
        return self.send("GET", self.path(kind, name))

    def list_pods(self, prefix: str) -> Sequence[Manifest]:
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
        def is_so() -> bool:
            found = self.read(kind, name).get("status", {}).get("conditions", [])
            return any(each["type"] == condition and each["status"] == "True" for each in found)

        self._until(is_so, f"{kind} {name} {condition}")

    def wait_gone(self, kind: str, name: str) -> None:
        path = self.path(kind, name)
        self._until(lambda: self.client.get(path).status_code == 404, f"{kind} {name} is gone")

    def wait_recorded(self, name: str, *, is_open: bool = True) -> None:
        """Pass: without a ledger there is nothing to wait for."""

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def note(self, name: str) -> None:
        date = self.client.get("/version").headers["Date"]
        self.diary.at[name] = parsedate_to_datetime(date).timestamp()

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                raise AssertionError(f"after {WAIT_SECONDS:.0f} s not so: {what}")
            time.sleep(0.15)

    def stop(self, part: Part) -> None:
        run_lab("stop", str(self.folder), part)

    def kill(self, part: Part) -> None:
        run_lab("kill", str(self.folder), part)

    def start(self, part: Part) -> None:
        run_lab("start", str(self.folder), part)
        if part == "apiserver":
            # They wait for up to a minute before they ask it again, unless they begin anew.
            clients = ("controllers", "scheduler", "kwok")
            run_lab("kill", str(self.folder), *clients)
            run_lab("start", str(self.folder), *clients)

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
        """Delete what was applied and end the watches of the diary.

        Namespaces stay: to end one the server is asked for every kind that there is.
        """
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
