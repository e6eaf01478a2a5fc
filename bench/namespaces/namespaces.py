"""Two ranks in PID namespaces of their own under a real agent, Prometheus and pager.

``python bench/namespaces/namespaces.py``, as root: states, owners of GPUs and alerts while the job
is healthy, while one rank is slow, and after kill -9 of that rank, whose child lives on. In its
namespace each rank has a low pid, which on this machine is that of another process.
"""

import argparse
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from lockstep_catalogue import gpu as gpu_metrics
from lockstep_catalogue import training
from lockstep_catalogue.labels import STATE
from lockstep_records.jobs import page_path
from lockstep_records.page.lock import holder_of
from lockstep_records.page.reader import read_page

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
_gpus: Any = importlib.import_module("agent.fake_node")
_tree: Any = importlib.import_module("agent.fake_tree")
_conftest: Any = importlib.import_module("agent.conftest")
JOB, NODE = "two-pods", "n1"
LOCKSTEP = (sys.executable, "-m", "lockstep_cli.main")
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
HEALTHY_SECONDS = 60.0
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where everything is.

    Attributes:
        pids: of the ranks, as this machine counts them.
    """

    work: Path
    root: Path
    gpus: Any
    prometheus: str
    pids: tuple[int, int]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression, now."""
        url = f"{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310  # our own server
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result

    def states(self) -> dict[str, int]:
        """Ranks by state, without the states that none has."""
        found = self.query(f'{training.RANKS.name}{{job_id="{JOB}"}}')
        counts = {each["metric"][STATE.name]: int(each["value"][1]) for each in found}
        return {state: count for state, count in counts.items() if count}

    def owners(self) -> dict[str, str]:
        """Job and rank by GPU."""
        found = [each["metric"] for each in self.query(gpu_metrics.GPU_OWNER_INFO.name)]
        return {each["gpu"]: f"{each['job_id']} rank {each['rank']}" for each in found}

    def missing(self) -> dict[str, str]:
        """Phase of each rank that the others wait for."""
        found = [each["metric"] for each in self.query(training.HANG_MISSING.name)]
        return {each["rank"]: each[training.PHASE_AT_HANG.name] for each in found}

    def firing(self) -> list[str]:
        """Alerts that fire, each with its rank and phase."""
        found = [each["metric"] for each in self.query('ALERTS{alertstate="firing"}')]
        return sorted(_sentence(each) for each in found)

    def pages(self) -> list[str]:
        """Alerts that reached the pager, in the order of their arrival, each once."""
        path = self.work / "stack" / "pages.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        alerts = [each["labels"] for line in lines for each in json.loads(line)["alerts"]]
        critical = [each for each in alerts if each["severity"] == "critical"]
        return list(dict.fromkeys(_sentence(each) for each in critical))


def _sentence(labels: Mapping[str, str]) -> str:
    named = [f"{name}={labels[name]}" for name in ("rank", "node", "phase") if name in labels]
    return " ".join((labels["alertname"], *named))


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def program(log: Path, command: tuple[str, ...], **environment: str) -> Iterator[int]:
    """A program in the background; it ends with the block. Gives its pid."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def wait_for(what: str, is_true: Callable[[], object], limit_seconds: float) -> float:
    """Seconds until a condition holds; ends the bench where it does not in time."""
    began = time.monotonic()
    while not is_true():
        if time.monotonic() - began > limit_seconds:
            sys.exit(f"FAILED: {what}, after {limit_seconds:.0f} s")
        time.sleep(0.25)
    return time.monotonic() - began


def child_of(pid: int) -> int:
    """The first child of a process; 0 before it has one."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return int(children[0]) if children else 0


def start_ranks(work: Path, root: Path, open_: ExitStack) -> tuple[int, int]:
    """Two ranks, each in a namespace whose first process, a shell, outlives it; their pids here."""
    shells = []
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    of_job = {"LOCKSTEP_JOB_ID": JOB, "LOCKSTEP_DIR": str(root), "LOCKSTEP_NODE": NODE}
    script = f"{sys.executable} {Path(__file__).parent / 'rank.py'} {work / 'slow'}; sleep 3600"
    for rank in ("0", "1"):
        environment = {**address, **of_job, "RANK": rank, "LOCAL_RANK": rank}
        command = (*UNSHARE, "sh", "-c", script)
        pid = open_.enter_context(program(work / f"rank-{rank}.log", command, **environment))
        wait_for("the namespace has a shell", partial(child_of, pid), 60)
        shells.append(child_of(pid))
    paths = [page_path(root, JOB, 0, rank) for rank in (0, 1)]
    wait_for("both ranks have a page", lambda: all(path.exists() for path in paths), 120)
    ranks = tuple(child_of(shell) for shell in shells)
    for path, pid in zip(paths, ranks, strict=True):
        wait_for("the rank locks its page", partial(holder_of, path), 60)
        holder = holder_of(path)
        print(
            f"{path.name}: pid {read_page(path).identity['pid']} in its namespace, {pid} here, "
            f"{holder.pid if holder else None} by the kernel's answer"
        )
    return ranks[0], ranks[1]


def start_watching(work: Path, root: Path, interval: str, open_: ExitStack) -> tuple[Any, str]:
    """A driver of two GPUs, the agent, and the servers; the driver, and Prometheus' address."""
    gpus = _gpus.FakeNode(work / "gpus", [_gpus.h100() for _ in range(2)])
    _tree.Tree(work / "sys", gpus=2, infiniband=2, ethernet=0)
    address = f"127.0.0.1:{free_port()}"
    of_node = ("--dir", str(root), "--sysfs", str(work / "sys"), "--state", str(work / "state"))
    library = ("--nvml-library", str(_conftest.build_nvml(work)))
    rates = ("--scrape-interval", interval, "--hang-timeout", "30s")
    names = ("--listen", address, "--node", NODE, "--cluster", "bench")
    command = (*LOCKSTEP, "agent", *of_node, *library, *rates, *names)
    open_.enter_context(program(work / "agent.log", command, NVML_STUB_STATE=str(work / "gpus")))
    stack = ("--dir", str(work / "stack"))
    up = (*LOCKSTEP, "stack", "up", *stack, "--target", address, "--interval", interval)
    subprocess.run([*up, "--group-interval", "10s"], check=True, stdout=subprocess.DEVNULL)
    open_.callback(subprocess.run, [*LOCKSTEP, "stack", "down", *stack], check=False)
    servers = json.loads((work / "stack" / "stack.json").read_text(encoding="utf-8"))
    return gpus, str(servers["prometheus"]["url"])


def watch_healthy(bench: Bench) -> None:
    """States and owners come, and no alert."""
    both = {"0": f"{JOB} rank 0", "1": f"{JOB} rank 1"}
    report("healthy", "states", bench.states, {"training": 2})
    report("healthy", "owners", bench.owners, both)
    time.sleep(HEALTHY_SECONDS)
    assert bench.states() == {"training": 2}, bench.states()
    print(f"| healthy | alerts in {HEALTHY_SECONDS:.0f} s | {bench.firing() or 'none'} | |")


def watch_slow(bench: Bench) -> None:
    """The page names the slow rank, and ends with its slowness."""
    page = f"TrainStragglerRank rank=1 node={NODE} phase=forward"
    (bench.work / "slow").touch()
    report("rank 1 is slow", "pages", bench.pages, [page])
    (bench.work / "slow").unlink()
    report("rank 1 is slow no more", "alerts", bench.firing, [])


def watch_killed(bench: Bench) -> None:
    """Kills the rank whose child lives on: its state, its GPU's owner, and the page."""
    pid = bench.pids[1]
    survivor = child_of(pid)
    os.kill(pid, signal.SIGKILL)
    mapped = Path(f"/proc/{survivor}/maps").read_text(encoding="utf-8")
    page = page_path(bench.root, JOB, 0, 1)
    is_mapped = "still maps the page" if str(page) in mapped else "does not map the page"
    print(f"killed {pid}; its child {survivor} lives and {is_mapped}")
    report("rank 1 is killed", "states", bench.states, {"training": 1, "gone": 1})
    report("rank 1 is killed", "owners", bench.owners, {"0": f"{JOB} rank 0"})
    report("rank 1 is killed", "missing", bench.missing, {"1": "gone"})
    before = bench.pages()
    report("rank 1 is killed", "pages", bench.pages, [*before, "TrainJobStalled"])
    assert Path(f"/proc/{survivor}").exists(), "the child has ended"
    assert bench.states() == {"training": 1, "gone": 1}, bench.states()


def report(stage: str, what: str, found: Callable[[], object], expected: object) -> None:
    """Waits until what is found is as expected, and prints a line of the table."""
    name = f"{stage}: {what} are {expected}"
    seconds = wait_for(name, lambda: found() == expected, PATIENCE_SECONDS)
    print(f"| {stage} | {what} | {expected} | {seconds:.0f} s |", flush=True)


def main() -> None:
    """Runs the three stages and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interval", default="15s")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave nothing behind
    work = Path(mkdtemp(prefix="namespaces-"))
    root = Path(mkdtemp(prefix="namespaces-", dir="/dev/shm"))
    print(f"work in {work}, pages in {root}", flush=True)
    with ExitStack() as open_:
        open_.callback(subprocess.run, ["rm", "-rf", str(root)], check=False)
        gpus, prometheus = start_watching(work, root, options.interval, open_)
        pids = start_ranks(work, root, open_)
        for gpu, pid in enumerate(pids):
            gpus.set(gpu, "nvmlDeviceGetComputeRunningProcesses_v3.pid", pid)
        bench = Bench(work=work, root=root, gpus=gpus, prometheus=prometheus, pids=pids)
        print("| stage | what | found | after |\n| --- | --- | --- | --- |")
        watch_healthy(bench)
        watch_slow(bench)
        watch_killed(bench)


if __name__ == "__main__":
    main()
