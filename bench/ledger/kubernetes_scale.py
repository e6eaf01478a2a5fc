"""Follows 2,000 jobs of 16,000 pods on a real control plane: memory, lists, pages, delays.

    python bench/ledger/kubernetes_scale.py LAB_FOLDER [--jobs 2000 --pods 8 --rate 50 --seconds 60]

Jobs are objects of an operator's kind and pods are bound at once, so that no controller is slower
than the feed. A change is the end of a pod; its delay is from the server's answer to the patch
until the ledger has stored the event. The lab is started and stopped here.
"""

import argparse
import json
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from ledger.kubernetes_situations.cluster import open_client
from ledger.kubernetes_situations.manifests import container, custom
from ledger.kubernetes_situations.stage import Stage, close_lab, open_lab

from lockstep_catalogue import feeds
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.tables import events

NAMESPACE = "scale"
WRITERS = 24


def create(client: httpx.Client, number: int, pods: int) -> list[str]:
    """Create a job and its pods, bound and by hand; the names of the pods."""
    name = f"scale-{number:04d}"
    base = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"
    top = client.post(base, json=custom("PyTorchJob", name)).raise_for_status().json()
    owner = {"apiVersion": top["apiVersion"], "kind": top["kind"], "name": name, "controller": True,
             "uid": top["metadata"]["uid"]}  # fmt: skip
    names = [f"{name}-worker-{index}" for index in range(pods)]
    for each in names:
        meta = {"name": each, "ownerReferences": [owner], "annotations": {"note": "x" * 1500},
                "labels": {f"label-{i}": "value" * 4 for i in range(10)}}  # fmt: skip
        environment = [{"name": f"VARIABLE_{i}", "value": "value" * 6} for i in range(30)]
        spec = {"nodeName": "gpu-1", "restartPolicy": "Never",
                "containers": [container(8) | {"env": environment}]}  # fmt: skip
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        client.post(f"/api/v1/namespaces/{NAMESPACE}/pods", json=body).raise_for_status()
    return names


def end_pod(client: httpx.Client, name: str) -> float:
    """End a pod as its kubelet would; when the server had it."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    status = {"phase": "Succeeded", "containerStatuses": [
        {"name": "train", "image": "train", "imageID": "", "ready": False, "restartCount": 0,
         "state": {"terminated": ended}}]}  # fmt: skip
    client.patch(
        f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/status", json={"status": status},
        headers={"Content-Type": "application/merge-patch+json"},
    ).raise_for_status()  # fmt: skip
    return time.time()


def read_memory(stage: Stage) -> float:
    """The most resident memory that the feed has had, in MiB."""
    process = stage.programs["feed"].process
    assert process is not None
    text = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    match = re.search(r"VmHWM:\s+(\d+)", text)
    assert match is not None
    return int(match[1]) / 1024


def count_pages(client: httpx.Client) -> float:
    """How many answers to lists of pods of all namespaces the server has given."""
    text = client.get("/metrics").text
    found = re.findall(r"^apiserver_request_total\{([^}]*)\} (\S+)$", text, re.MULTILINE)
    words = ('resource="pods"', 'verb="LIST"', 'scope="cluster"')
    return sum(float(value) for labels, value in found if all(word in labels for word in words))


def measure_delays(
    stage: Stage, client: httpx.Client, names: list[str], rate: float
) -> list[float]:
    """End pods at a rate; seconds from each change until its event was stored."""
    changed: dict[str, float] = {}

    def end(index: int) -> None:
        time.sleep(max(0.0, begin + index / rate - time.monotonic()))
        changed[names[index]] = end_pod(client, names[index])

    begin = time.monotonic()
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(end, range(len(names))))
    sys.stdout.write(f"{len(names)} changes in {time.monotonic() - begin:.1f} s\n")
    uids = {
        pod["metadata"]["uid"]: pod["metadata"]["name"]
        for pod in client.get(f"/api/v1/namespaces/{NAMESPACE}/pods").json()["items"]
    }
    stage.until(lambda: stage.measure(feeds.WAITING.name) == 0, "all is delivered", 120)
    time.sleep(3)
    engine, received = open_store(str(stage.work / "ledger.db")), {}
    with engine.connect() as connection:
        query = select(events.c.body, events.c.received).where(
            events.c.kind == "resources_released"
        )
        for body, moment in connection.execute(query):
            part = json.loads(body)["fields"]["part"].partition("/")[0]
            received[uids.get(part, "")] = moment
    engine.dispose()
    missing = [name for name in changed if name not in received]
    sys.stdout.write(f"without an event: {len(missing)}\n")
    return sorted(received[name] - moment for name, moment in changed.items() if name in received)


def fill(client: httpx.Client, options: argparse.Namespace) -> list[str]:
    """Create all jobs and pods, and wait until they run; names of the pods."""
    body: dict[str, Any] = {
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE},
    }  # fmt: skip
    client.post("/api/v1/namespaces", json=body).raise_for_status()
    time.sleep(2)
    begin = time.monotonic()
    with ThreadPoolExecutor(WRITERS) as pool:
        created = list(pool.map(lambda n: create(client, n, options.pods), range(options.jobs)))
    names = [name for each in created for name in each]
    sys.stdout.write(f"{len(names)} pods created in {time.monotonic() - begin:.0f} s\n")
    query: dict[str, str | int] = {"fieldSelector": "status.phase=Pending", "limit": 1}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    while client.get(path, params=query, timeout=60).json()["items"]:
        if time.monotonic() - begin > options.patience:
            break
        time.sleep(2)
    sys.stdout.write(f"the pods run after {time.monotonic() - begin:.0f} s\n")
    sys.stdout.flush()
    return names


def is_delivered(stage: Stage) -> bool:
    """Whether the feed has delivered all that it knows."""
    is_begun = bool(stage.measure(feeds.ASKED.name) > 0)
    return is_begun and bool(stage.measure(feeds.WAITING.name) == 0)


def run(folder: Path, options: argparse.Namespace) -> None:
    """Print the figures."""
    client = open_client(folder / "kubeconfig")
    names = fill(client, options)
    pages = count_pages(client)
    stage = Stage(folder).open()
    try:
        started = time.monotonic()
        stage.until(lambda: is_delivered(stage), "all is delivered", 300)
        sys.stdout.write(
            f"first delivery: {stage.measure(feeds.EVENTS.name):.0f} events in "
            f"{time.monotonic() - started:.1f} s, {count_pages(client) - pages:.0f} pages of pods, "
            f"memory {read_memory(stage):.0f} MiB\n"
        )
        chosen = names[: int(options.rate * options.seconds)]
        delays = measure_delays(stage, client, chosen, options.rate)
        median, high = delays[len(delays) // 2], delays[int(len(delays) * 0.99)]
        sys.stdout.write(
            f"delay: median {median:.2f} s, 99 % {high:.2f} s, most {delays[-1]:.2f} s; memory "
            f"{read_memory(stage):.0f} MiB; {stage.measure(feeds.LISTS.name):.0f} lists of "
            f"{stage.measure(feeds.KINDS.name):.0f} kinds\n"
        )
    finally:
        stage.programs["feed"].end(signal.SIGTERM)
        stage.close()


def main() -> None:
    """Start a lab, run, stop it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=lambda text: Path(text).absolute())
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--pods", type=int, default=8)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--patience", type=float, default=900.0)
    options = parser.parse_args()
    open_lab(options.folder)
    try:
        run(options.folder, options)
    finally:
        close_lab(options.folder)


if __name__ == "__main__":
    main()
