"""What the server itself says of the pods of a situation: the other side of every sum."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx

ACCELERATORS = ("nvidia.com/", "amd.com/gpu", "gpu.intel.com/", "habana.ai/gaudi", "google.com/tpu")


def parse_time(text: str) -> float:
    """Return seconds since 1970 of a time of the server."""
    return datetime.fromisoformat(text).timestamp()


@dataclass
class PodLife:
    """When a pod ran: the begin of each run of its containers, and its end where it has one."""

    name: str
    gpus: float
    side: str
    runs: dict[float, float | None] = field(default_factory=dict)

    def seconds(self, now: float) -> float:
        """Return how long at least one container ran, up to now."""
        total, covered = 0.0, 0.0
        for begin, end in sorted(self.runs.items()):
            until = now if end is None else end
            total += max(0.0, until - max(begin, covered))
            covered = max(covered, until)
        return total


class Diary:
    """The lives of all pods of some namespaces, and the times that a script noted."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.pods: dict[str, PodLife] = {}
        self.present: dict[str, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._closed = threading.Event()

    def first_start(self, prefix: str) -> float:
        """Return when the first pod whose name begins so ran."""
        return min(begin for life in self._find(prefix) for begin in life.runs)

    def last_end(self, prefix: str) -> float:
        return max(end for life in self._find(prefix) for end in life.runs.values() if end)

    def gpu_seconds(self, prefix: str, side: str = "") -> float:
        """Return the sum over pods, of one of both namespaces or all, of run time times GPUs."""
        now = time.time()
        lives = (life for life in self._find(prefix) if side in {"", life.side})
        return sum(life.seconds(now) * life.gpus for life in lives)

    def gpus(self, prefix: str) -> float:
        """Return the sum of the GPUs of these pods, the measure of a tolerance of one second."""
        return sum(life.gpus * max(1, len(life.runs)) for life in self._find(prefix))

    def _find(self, prefix: str) -> Iterator[PodLife]:
        return (life for life in list(self.pods.values()) if life.name.startswith(prefix))

    def list_pods(self, prefix: str) -> list[dict[str, Any]]:
        """Return the pods that are there and whose names begin so, by name."""
        with self._changed:
            found = [p for p in self.present.values() if p["metadata"]["name"].startswith(prefix)]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def wait_for(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Wait until a change of a pod makes something so; return whether it is."""
        with self._changed:
            return self._changed.wait_for(is_so, seconds)

    def watch(self, client: httpx.Client, namespace: str, side: str) -> None:
        """Follow the pods of a namespace until `close`, over every outage of the server."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        while not self._closed.is_set():
            # A server that has just started may answer with a refusal, which has no version.
            with suppress(httpx.HTTPError, OSError, json.JSONDecodeError, KeyError):
                found = client.get(path).json()
                self._replace(found["items"], namespace, side)
                revision = found["metadata"]["resourceVersion"]
                query = {"watch": "1", "resourceVersion": revision, "timeoutSeconds": "30"}
                with client.stream("GET", path, params=query, timeout=40) as lines:
                    for line in lines.iter_lines():
                        change = json.loads(line)
                        if change["type"] == "ERROR" or self._closed.is_set():
                            break
                        with self._changed:
                            self._write(change["object"], side, is_gone=change["type"] == "DELETED")
                            self._changed.notify_all()
            self._closed.wait(0.2)
        client.close()

    def close(self) -> None:
        """End all watches at their next change or time-out."""
        self._closed.set()

    def _replace(self, pods: list[dict[str, Any]], namespace: str, side: str) -> None:
        with self._changed:
            for uid, pod in list(self.present.items()):
                if pod["metadata"]["namespace"] == namespace:
                    del self.present[uid]
            for pod in pods:
                self._write(pod, side, is_gone=False)
            self._changed.notify_all()

    def _write(self, pod: dict[str, Any], side: str, *, is_gone: bool) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        life = self.pods.setdefault(uid, PodLife(name, count_gpus(pod), side))
        for container in pod["status"].get("containerStatuses", []):
            for state in (container.get("lastState", {}), container.get("state", {})):
                running, terminated = state.get("running"), state.get("terminated")
                if running and running.get("startedAt"):
                    life.runs.setdefault(parse_time(running["startedAt"]), None)
                if terminated and terminated.get("startedAt"):
                    begin, end = terminated["startedAt"], terminated["finishedAt"]
                    life.runs[parse_time(begin)] = parse_time(end)
        self.present[uid] = pod
        if is_gone:  # it ended unseen: a node that was lost, or a deletion by force
            del self.present[uid]
            for begin, end in life.runs.items():
                life.runs[begin] = time.time() if end is None else end


def count_gpus(pod: dict[str, Any]) -> float:
    """Return the accelerators that a pod holds; `lab/gpus` says it where a claim does."""
    noted = pod["metadata"].get("annotations", {}).get("lab/gpus")
    if noted is not None:
        return float(noted)
    spec = pod["spec"]
    limits = [each.get("resources", {}).get("limits", {}) for each in spec["containers"]]
    return sum(
        float(count)
        for limit in limits
        for resource, count in limit.items()
        if resource.startswith(ACCELERATORS)
    )
