"""Two jobs of two pods each, one agent, one ledger and one Prometheus, by the shipped manifests.

``python -m namespaces.pods FOLDER`` in PID, mount and network namespaces of its own (``unshare
--pid --fork --mount --mount-proc --net``), as root. One rank of the first job is slow; a rank of
the second is killed. What was found is written to FOLDER/findings.json, with logs and pages.
"""

import argparse
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import yaml
from tenants.users import REPOSITORY, environment

from lockstep_alerts.output import render, write_files
from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.shipped import one_machine_spec_path
from lockstep_alerts.spec import read_spec
from lockstep_catalogue import training
from lockstep_cli.deploy.kubernetes import missing_keys
from lockstep_records.files.jobs import page_path
from lockstep_records.page.lock import holder_of
from namespaces.containers import become_node, entrypoint_of, first_process, start_container
from namespaces.volumes import KUBELET, LOGS, Pod

DEPLOY = REPOSITORY / "deploy"
BASE = DEPLOY / "kubernetes" / "base"
ACCESS = Path("/etc/lockstep/access")
PROMETHEUS, LEDGER = "http://127.0.0.1:9090", "https://lockstep-ledger.lockstep.svc:9450"
SLOW, KILLED = "llm", "bert"
# Namespace of each job, and the port at which its pods meet: they share one network here.
JOBS = {SLOW: ("vision", "29501"), KILLED: ("speech", "29502")}
NUM_RANKS = 4
TINY = ("--strategy=ddp", "--steps=1000000", "--layers=1", "--width=16", "--heads=2",
        "--sequence=16", "--batch=2", "--eval-every=0", "--checkpoint-every=0", "--log-every=0",
        "--threads=1")  # fmt: skip
FAULT = "--fault=slow-forward:rank=1,step=20,until=end,delay=300ms"
# Address and name of the port of each target.
PORTS = {
    "lockstep-agent": ("127.0.0.1:9440", "metrics"),
    "lockstep-ledger": ("127.0.0.1:9450", "https"),
}
PATIENCE_SECONDS = 100.0
QUIET_SECONDS = 15.0


def manifests(path: Path) -> list[dict[str, Any]]:
    """The objects of a file."""
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def template_of(path: Path, kind: str) -> dict[str, Any]:
    """The first pod template of a kind in a file: metadata and spec."""
    found = next(each for each in manifests(path) if each["kind"] == kind)["spec"]["template"]
    assert isinstance(found, dict)
    return found


def wait_for(what: str, is_true: Callable[[], object]) -> None:
    """Waits until something is true; ends the scenario where it does not become so in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with suppress(httpx.HTTPError, KeyError, OSError):
            if is_true():
                print(f"{time.strftime('%X')} {what}", flush=True)
                return
        if time.monotonic() > deadline:
            scrapes = httpx.get(f"{PROMETHEUS}/api/v1/targets", trust_env=False).json()
            errors = {
                each["scrapePool"]: each["lastError"] for each in scrapes["data"]["activeTargets"]
            }
            sys.exit(f"not in {PATIENCE_SECONDS:.0f} s: {what}; scrapes: {errors}")
        time.sleep(0.5)


def start_system(template: Path, kind: str, image: str, access: dict[str, str]) -> int:
    """Starts a pod of Lockstep's own; its process id."""
    shape = template_of(template, kind)
    web = next((each for each in manifests(template) if each["kind"] == "ConfigMap"), {})
    contents = {"lockstep-access": access, "lockstep-agent-web": web.get("data", {})}
    pod = Pod(
        namespace="lockstep", name=f"lockstep-{image}-0", uid=str(uuid.uuid4()),
        spec=shape["spec"], contents=contents,
    )  # fmt: skip
    started = start_container(pod, entrypoint_of(image))
    wait_for(f"the {image} has a process", partial(first_process, pod, started))
    return first_process(pod, started)


def start_job(name: str) -> dict[str, int]:
    """Starts the pods of the shipped example of a Job under another name; process ids by pod."""
    namespace, port = JOBS[name]
    text = (DEPLOY / "kubernetes" / "examples" / "job.yaml").read_text(encoding="utf-8")
    job = next(
        each for each in yaml.safe_load_all(text.replace("plain", name)) if each["kind"] == "Job"
    )
    spec, controller = job["spec"]["template"]["spec"], str(uuid.uuid4())
    [container] = spec["containers"]
    assert container["command"][:2] == ["lockstep", "run"]
    fault = (FAULT,) if name == SLOW else ()
    container["command"] = ["lockstep", "run", "--job-class=production", "-m", "lockstep_trainer",
                            *TINY, *fault]  # fmt: skip
    container["env"].append({"name": "PET_MASTER_PORT", "value": port})
    labels = {
        "batch.kubernetes.io/job-name": name,
        "batch.kubernetes.io/controller-uid": controller,
    }
    found = {}
    for index in range(job["spec"]["completions"]):
        pod = Pod(
            namespace=namespace, name=f"{name}-{index}", uid=str(uuid.uuid4()), spec=spec,
            labels=labels, annotations={"batch.kubernetes.io/job-completion-index": str(index)},
        )  # fmt: skip
        with Path("/etc/hosts").open("a", encoding="utf-8") as hosts:
            address = f"127.0.{port[-1]}.{index + 1}"
            hosts.write(f"{address} {pod.name} {pod.name}.{name}\n")
        started = start_container(pod)
        wait_for(f"{pod.name} has a process", partial(first_process, pod, started))
        found[pod.name] = first_process(pod, started)
    return found


def write_prometheus(folder: Path) -> Path:
    """The shipped configuration; what Kubernetes would list as targets stands in a file instead."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    own = [each for each in config["scrape_configs"] if each["job_name"] == "prometheus"]
    component = DEPLOY / "kubernetes" / "components" / "plain-prometheus" / "scrape.yaml"
    [of_pods] = [each["data"] for each in manifests(component)]
    config["scrape_configs"] = own + yaml.safe_load(of_pods["lockstep.yaml"])["scrape_configs"]
    for scrape in config["scrape_configs"][len(own) :]:
        name = scrape["job_name"]
        assert scrape.pop("kubernetes_sd_configs") == [
            {"role": "pod", "namespaces": {"own_namespace": True}}
        ]
        address, port_name = PORTS[name]
        labels = {
            "__meta_kubernetes_pod_label_app_kubernetes_io_name": name,
            "__meta_kubernetes_pod_container_port_name": port_name,
            "__meta_kubernetes_pod_node_name": "node-1",
        }
        (folder / f"{name}.json").write_text(
            json.dumps([{"targets": [address], "labels": labels}]), encoding="utf-8"
        )
        scrape["file_sd_configs"] = [{"files": [f"{name}.json"]}]
    write_files(folder, render(read_spec(one_machine_spec_path()), Delivery()))
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def start_servers(folder: Path) -> None:
    """Pager, Alertmanager with the generated routes, and Prometheus, at their usual ports."""
    alertmanager = shutil.which("alertmanager") or "prometheus-alertmanager"
    routes = REPOSITORY / "alerts" / "generated" / "alertmanager.yaml"
    pager = (sys.executable, "-m", "lockstep_alerts.stack.pager", "--port", "9095", "--dir")
    commands = (
        (*pager, str(folder)),
        (alertmanager, f"--config.file={routes}", f"--storage.path={folder / 'alertmanager'}",
         "--web.listen-address=127.0.0.1:9093", "--cluster.listen-address="),
        ("prometheus", f"--config.file={write_prometheus(folder)}",
         f"--storage.tsdb.path={folder / 'prometheus'}", "--web.listen-address=127.0.0.1:9090"),
    )  # fmt: skip
    for command in commands:
        with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
            subprocess.Popen(command, stdout=log, stderr=log, env=environment(folder))


def query(expression: str) -> list[dict[str, Any]]:
    """The series of an expression, now."""
    url = f"{PROMETHEUS}/api/v1/query"
    answer = httpx.get(url, params={"query": expression}, trust_env=False)
    result: list[dict[str, Any]] = answer.raise_for_status().json()["data"]["result"]
    return result


def firing_pages(folder: Path) -> list[dict[str, Any]]:
    """The notifications of alerts that fire, in their order."""
    lines = (folder / "pages.jsonl").read_text(encoding="utf-8").splitlines()
    return [page for line in lines if (page := json.loads(line))["status"] == "firing"]


def straggler_pages(folder: Path) -> list[dict[str, Any]]:
    """The alerts on a slow rank that reached the pager."""
    pages = [page for page in firing_pages(folder) if page["receiver"] == "pager"]
    alerts = [alert for page in pages for alert in page["alerts"]]
    return [each for each in alerts if each["labels"]["alertname"] == "JobLosing"]


def job_in_ledger(job_id: str, access: dict[str, str]) -> dict[str, Any]:
    """The record of a job."""
    context = ssl.create_default_context(cafile=ACCESS / "ca.crt")
    with httpx.Client(verify=context, trust_env=False) as client:
        answer = client.get(
            f"{LEDGER}/api/jobs/{job_id}", headers={"Authorization": f"Bearer {access['reader']}"}
        )
    record: dict[str, Any] = answer.raise_for_status().json()
    return record


def process_of(pid: int) -> dict[str, Any]:
    """Namespaces, user, capabilities and root of a process."""
    fields = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        if ":\t" in line
    )
    mounts = Path(f"/proc/{pid}/mounts").read_text(encoding="utf-8").splitlines()
    [root] = [line.split()[3] for line in mounts if line.split()[1] == "/"]
    kinds = ("pid", "mnt", "uts", "user")
    namespaces = {kind: str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in kinds}
    return {
        "namespaces": namespaces,
        "uid": int(fields["Uid"].split()[0]),
        "capabilities": int(fields["CapEff"], 16),
        "root_is_read_only": "ro" in root.split(","),
    }


def kill_rank(job_id: str, rank: int) -> None:
    """Ends a rank by SIGKILL, as the kernel does where the node has no memory left."""
    volumes = KUBELET.glob("*/volumes/kubernetes.io~empty-dir/lockstep")
    [path] = [path for root in volumes if (path := page_path(root, job_id, 0, rank)).exists()]
    holder = holder_of(path)
    assert holder is not None
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)


def watch(folder: Path, access: dict[str, str], pids: dict[str, int]) -> dict[str, Any]:
    """Waits for what is to be seen, kills a rank, and gives what was found."""
    info = training.RANK_INFO.name
    wait_for("four ranks are watched", lambda: len(query(info)) == NUM_RANKS)
    wait_for("all train", lambda: len(query(f"{training.STEPS.name} > 2")) == NUM_RANKS)
    ranks = [each["metric"] for each in query(info)]
    ids = {each["namespace"]: each["job_id"] for each in ranks}
    processes = {name: process_of(pid) for name, pid in pids.items()}
    killed = ids[JOBS[KILLED][0]]
    kill_rank(killed, 1)
    wait_for("the ledger has the end", lambda: job_in_ledger(killed, access)["outcome"])
    wait_for("somebody is paged", lambda: straggler_pages(folder))
    time.sleep(QUIET_SECONDS)
    ever = query(f"present_over_time({info}[10m])")
    return {
        "ranks": ranks,
        "processes": processes,
        "volumes": len(list(KUBELET.glob("*/volumes/kubernetes.io~empty-dir/lockstep"))),
        "up": {each["metric"]["job"]: each["value"][1] for each in query("up")},
        "jobs": sorted({each["metric"]["job_id"] for each in ever}),
        "pages": straggler_pages(folder),
        "killed": job_in_ledger(killed, access),
        "slow": job_in_ledger(ids[JOBS[SLOW][0]], access),
    }


def main() -> None:
    """Runs the scenario in a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder.resolve()
    (folder / "layers").mkdir()
    become_node(folder / "layers")
    access = missing_keys({}, "lockstep")
    KUBELET.mkdir(parents=True)
    ACCESS.mkdir(parents=True)
    ACCESS.chmod(0o700)  # Prometheus' own, whose pod this view is
    for key, text in access.items():
        (ACCESS / key).write_text(text, encoding="utf-8")
    hosts = "127.0.0.1 localhost lockstep-ledger.lockstep.svc\n"
    Path("/etc/hosts").write_text(hosts, encoding="utf-8")
    try:
        start_servers(folder)
        pids = {"ledger": start_system(BASE / "ledger.yaml", "Deployment", "ledger", access)}
        pids["agent"] = start_system(BASE / "agent.yaml", "DaemonSet", "agent", access)
        pids |= start_job(SLOW) | start_job(KILLED)
        findings = watch(folder, access, pids)
        (folder / "findings.json").write_text(json.dumps(findings, indent=1), encoding="utf-8")
    finally:
        shutil.copytree(LOGS, folder / "logs")


if __name__ == "__main__":
    main()
