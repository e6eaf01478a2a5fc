"""Follows 2,000 jobs of 16,000 pods on a real API server: memory, lists, pages, delays.

    python bench/ledger/kubernetes_scale.py LAB_FOLDER [--jobs 2000 --pods 8 --rate 50 --seconds 60]

The objects are put into the server's store as controllers and kubelets would have left them, for
to create them by requests takes a quarter of an hour. Controllers, scheduler and kubelets are
stopped (unless --all-parts), so that the machine is the server's, the ledger's and the feed's. A
change is the end of a pod; its delay is from the server's answer to the patch until the ledger has
stored the event. The lab is started and stopped here.
"""

import argparse
import http.client
import json
import os
import re
import signal
import sqlite3
import ssl
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from ledger.kubernetes_situations.cluster import open_client, run_lab
from ledger.kubernetes_situations.manifests import container, custom
from ledger.kubernetes_situations.stage import Stage, close_lab, open_lab

from lockstep_catalogue import feeds
from lockstep_ledger.store.database import open_store
from lockstep_ledger.store.tables import events

NAMESPACE = "scale"
WRITERS = 16
BESIDE = ("kwok", "scheduler", "controllers")
SMALL = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
ROW = (
    "INSERT INTO kine (name, created, deleted, create_revision, prev_revision, lease, value) "
    "VALUES (?, 1, 0, 0, 0, 0, ?)"
)


def uid_of(name: str) -> str:
    """The uid of an object."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def now_text() -> str:
    """This moment as the server writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def meta(name: str, **more: Any) -> dict[str, Any]:
    """Metadata of an object that was created now."""
    identity = {"name": name, "namespace": NAMESPACE, "uid": uid_of(name)}
    return {**identity, "creationTimestamp": now_text(), **more}


def describe_pod(name: str, owner: dict[str, Any]) -> dict[str, Any]:
    """A pod that runs, with labels, an annotation of 1.5 kB and 30 variables."""
    more = {
        "ownerReferences": [owner], "annotations": {"note": "x" * 1500},
        "labels": {f"label-{i}": "value" * 4 for i in range(10)},
    }  # fmt: skip
    environment = [{"name": f"VARIABLE_{i}", "value": "value" * 6} for i in range(30)]
    running = {"running": {"startedAt": now_text()}}
    each = {"name": "train", "image": "train", "imageID": "", "ready": True, "restartCount": 0}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": meta(name, **more),
        "spec": {"nodeName": "gpu-1", "restartPolicy": "Never",
                 "containers": [container(8) | {"env": environment}]},
        "status": {"phase": "Running", "containerStatuses": [each | {"state": running}]},
    }  # fmt: skip


def describe_rows(num_jobs: int, pods: int) -> Iterator[tuple[str, bytes]]:
    """Key and value in the store of every job and pod."""
    for number in range(num_jobs):
        name = f"scale-{number:04d}"
        top = custom("PyTorchJob", name) | {"metadata": meta(name)}
        yield f"/registry/kubeflow.org/pytorchjobs/{NAMESPACE}/{name}", json.dumps(top).encode()
        owner = {"apiVersion": top["apiVersion"], "kind": top["kind"], "name": name,
                 "controller": True, "uid": uid_of(name)}  # fmt: skip
        for index in range(pods):
            pod = describe_pod(f"{name}-worker-{index}", owner)
            key = f"/registry/pods/{NAMESPACE}/{pod['metadata']['name']}"
            yield key, json.dumps(pod).encode()


def fill_store(folder: Path, options: argparse.Namespace) -> list[str]:
    """Put all jobs and pods into the store; names of the pods."""
    rows = list(describe_rows(options.jobs, options.pods))
    run_lab("stop", str(folder), *BESIDE, "apiserver", "kine")
    with closing(sqlite3.connect(folder / "db/state.db")) as store, store:
        store.executemany(ROW, rows)
    run_lab("start", str(folder), "kine", "apiserver", *(BESIDE if options.all_parts else ()))
    return [key.rpartition("/")[2] for key, _ in rows if "/pods/" in key]


class Changes:
    """Ends of pods at a rate, over connections that are kept.

    Attributes:
        changed: when the server had the end of each, by name of the pod.
    """

    def __init__(self, folder: Path, names: list[str], rate: float) -> None:
        config = json.loads((folder / "kubeconfig").read_text(encoding="utf-8"))
        cluster = config["clusters"][0]["cluster"]
        self._address = cluster["server"].removeprefix("https://")
        self._context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._headers = {
            "Authorization": f"Bearer {config['users'][0]['user']['token']}",
            "Content-Type": "application/merge-patch+json", "Accept": SMALL,
        }  # fmt: skip
        self._names, self._rate, self._begin = names, rate, 0.0
        self.changed: dict[str, float] = {}

    def run(self) -> float:
        """Write all; the seconds that it took."""
        self._begin = time.monotonic()
        writers = [threading.Thread(target=self._write, args=(n,)) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        return time.monotonic() - self._begin

    def _write(self, first: int) -> None:
        connection = http.client.HTTPSConnection(self._address, context=self._context, timeout=30)
        for index in range(first, len(self._names), WRITERS):
            name, now = self._names[index], now_text()
            ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
            status = {"phase": "Succeeded", "containerStatuses": [
                {"name": "train", "image": "train", "imageID": "", "ready": False,
                 "restartCount": 0, "state": {"terminated": ended}}]}  # fmt: skip
            time.sleep(max(0.0, self._begin + index / self._rate - time.monotonic()))
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/status"
            connection.request("PATCH", path, json.dumps({"status": status}), self._headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == http.HTTPStatus.OK, text
            self.changed[name] = time.time()
        connection.close()


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


def measure_delays(stage: Stage, changes: Changes) -> list[float]:
    """End pods at a rate; seconds from each change until its event was stored."""
    before = read_processor(stage)
    seconds = changes.run()
    used = {name: (value - before[name]) / seconds for name, value in read_processor(stage).items()}
    changed = changes.changed
    sys.stdout.write(
        f"{len(changed)} changes in {seconds:.1f} s, {len(changed) / seconds:.1f} a second; cores: "
        + ", ".join(f"{name} {value:.2f}" for name, value in used.items())
        + "\n"
    )
    stage.until(lambda: stage.measure(feeds.WAITING.name) == 0, "all is delivered", 120)
    time.sleep(3)
    names, received = {uid_of(name): name for name in changed}, {}
    engine = open_store(str(stage.work / "ledger.db"))
    with engine.connect() as connection:
        query = select(events.c.body, events.c.received).where(
            events.c.kind == "resources_released"
        )
        for body, moment in connection.execute(query):
            part = json.loads(body)["fields"]["part"].partition("/")[0]
            received[names.get(part, "")] = moment
    engine.dispose()
    missing = [name for name in changed if name not in received]
    sys.stdout.write(f"without an event: {len(missing)}\n")
    return sorted(received[name] - moment for name, moment in changed.items() if name in received)


def read_processor(stage: Stage) -> dict[str, float]:
    """Seconds of processor time that each process has had."""
    parts = ("apiserver", "kine", *BESIDE)
    files = {name: stage.folder / f"{name}.pid" for name in parts}
    pids = {name: int(file.read_text()) for name, file in files.items() if file.exists()}
    for name in ("feed", "ledger"):
        process = stage.programs[name].process
        assert process is not None
        pids[name] = process.pid
    pids["writers"] = os.getpid()
    found = {}
    for name, pid in pids.items():
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        found[name] = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return found


def run(folder: Path, options: argparse.Namespace) -> None:
    """Print the figures."""
    client = open_client(folder / "kubeconfig")
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    client.post("/api/v1/namespaces", json=body).raise_for_status()
    names = fill_store(folder, options)
    pages = count_pages(client)
    stage = Stage(folder).open()
    try:
        started = time.monotonic()
        expected = len(names) + 2 * options.jobs  # submission and start of each job, and its pods
        stage.until(lambda: stage.measure(feeds.EVENTS.name) >= expected, "all is there", 300)
        sys.stdout.write(
            f"first delivery: {stage.measure(feeds.EVENTS.name):.0f} events in "
            f"{time.monotonic() - started:.1f} s, {count_pages(client) - pages:.0f} pages of pods, "
            f"memory {read_memory(stage):.0f} MiB\n"
        )
        chosen = names[: int(options.rate * options.seconds)]
        delays = measure_delays(stage, Changes(folder, chosen, options.rate))
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
    parser.add_argument("--all-parts", action="store_true", help="with controllers and kubelets")
    options = parser.parse_args()
    open_lab(options.folder)
    try:
        run(options.folder, options)
    finally:
        close_lab(options.folder)


if __name__ == "__main__":
    main()
