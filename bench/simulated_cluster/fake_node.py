"""A fake node with an agent: 8 H100, 10 ports and 8 ranks that write a step every 0.2 s.

GPUs and ports are the tests' own parts. ``python -m simulated_cluster.fake_node DIR JOBS`` writes
the ranks' pages until it is killed, with every kind of collective: ``lockstep simulate`` writes one
kind only, and a hybrid of all kinds has six times as many series of them.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from lockstep_catalogue.labels import KIND, STEP_PHASES
from lockstep_cli.gameday.fake_node import FakeNode, Tree, build_nvml, h100
from lockstep_cli.small_server import free_port
from lockstep_records.files.jobs import page_path
from lockstep_records.page.layout import PHASES, SLOT
from lockstep_records.page.writer import PageWriter, RankIdentity

GPUS, PORTS, RANKS = 8, 10, 8
NODE, JOB, STEP_SECONDS = "node-0001", "bench-0", 0.2
_STEPS_A_PERIODIC = 5
_BYTES = 1 << 20
_SHARES = {"data": 0.1, "forward": 0.25, "backward": 0.4, "optimizer": 0.1, "sync": 0.15}
_KNOWN = {"loss": 2.5, "gradient_norm": 0.5, "learning_rate": 3e-4}
_APART_SECONDS = 6.0


def build_node(folder: Path, gpus: int = GPUS) -> tuple[dict[str, str], Path]:
    """A node in a folder: its environment, and its NVML library."""
    FakeNode(folder / "gpus", [h100() for _ in range(gpus)])
    # Beyond 48 GPUs the addresses on the bus are those of the adapters.
    Tree(folder / "sys", gpus=min(gpus, 48), infiniband=8, ethernet=2)
    environment = {"NVML_STUB_STATE": str(folder / "gpus"), "NVML_STUB_POLL_SECONDS": "1"}
    return environment, build_nvml(folder)


@contextmanager
def training(jobs: Path, num_jobs: int = 1, num_ranks: int = RANKS) -> Iterator[None]:
    """Ranks of so many jobs that write their pages while the block lasts."""
    command = [sys.executable, str(Path(__file__)), str(jobs), str(num_jobs), str(num_ranks)]
    ranks = subprocess.Popen(command)
    try:
        while len(list(jobs.glob("jobs/*/*/rank-*.page"))) < num_ranks:
            assert ranks.poll() is None, f"the ranks ended with {ranks.returncode}"
            time.sleep(0.1)
        yield
    finally:
        ranks.kill()
        ranks.wait()


@dataclass(frozen=True, kw_only=True)
class Program:
    """One exporter; ``scrapes``: how many it gets where its cost is measured."""

    name: str
    command: list[str]
    url: str
    scrapes: int = 500
    environment: dict[str, str] = field(default_factory=dict)


def agent(folder: Path, *options: str, environment: dict[str, str], scrapes: int = 0) -> Program:
    """The agent with its defaults on the node of a folder."""
    url = f"http://127.0.0.1:{free_port()}/metrics"
    command = [sys.executable, "-m", "lockstep_cli.main", "agent", *options, "--node", NODE]
    command += ["--dir", str(folder / "lockstep"), "--listen", urlsplit(url).netloc]
    command += ["--state", str(folder / "state"), "--sysfs", str(folder / "sys")]
    command += ["--nvml-library", str(folder / "libnvidia-ml.so.1")]
    return Program(
        name="lockstep agent", command=command, url=url, scrapes=scrapes, environment=environment
    )


@contextmanager
def running(program: Program) -> Iterator[tuple[int, float]]:
    """The program as a process: its pid, and seconds until the first scrape with a sample."""
    environment = {**os.environ, **program.environment}
    began = time.perf_counter()
    process = subprocess.Popen(
        program.command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while series_of(program.url) == 0:
            assert process.poll() is None, f"{program.name} ended with {process.returncode}"
            assert time.perf_counter() - began < 60, f"{program.name} serves nothing"  # noqa: PLR2004  # a minute is long enough
            time.sleep(0.01)
        yield process.pid, time.perf_counter() - began
    finally:
        process.kill()
        process.wait()


def get(url: str) -> bytes:
    """One uncompressed scrape on a connection of its own."""
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=30)
    try:
        connection.request("GET", address.path)
        return connection.getresponse().read()
    finally:
        connection.close()


def series_of(url: str) -> int:
    """Number of series in one scrape, 0 while the agent does not answer."""
    try:
        text = get(url).decode()
    except OSError:
        return 0
    return sum(not line.startswith("#") for line in text.splitlines() if line)


def scrape_twice() -> tuple[str, str]:
    """Two scrapes of the agent with one job, some seconds apart, with the same series."""
    with ExitStack() as stack:
        # Pages need a tmpfs.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        (folder / "lockstep").mkdir()
        environment, _ = build_node(folder)
        stack.enter_context(training(folder / "lockstep"))
        program = agent(folder, environment=environment)
        stack.enter_context(running(program))
        time.sleep(2 * _APART_SECONDS)  # what appears once rates are known has appeared
        first = get(program.url).decode()
        time.sleep(_APART_SECONDS)
        return first, get(program.url).decode()


def _open_page(folder: Path, number: int, num_jobs: int, num_ranks: int) -> PageWriter:
    """The page of a rank; the ranks are dealt out to the jobs."""
    job_id, rank = f"bench-{number % num_jobs}", number // num_jobs
    path = page_path(folder, job_id, 0, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    identity = RankIdentity(
        rank=rank,
        attempt=0,
        job_id=job_id,
        world_size=num_ranks // num_jobs,
        local_rank=rank,
        cluster="bench",
        project="bench",
        node=NODE,
        mesh=(("dp", rank),),
        gpu_uuid=f"GPU-00000000-0000-0000-0000-{number:012d}",
    )
    return PageWriter(path, identity, rows=256)


def _write_step(page: PageWriter, step: int) -> None:
    """One step of a rank: row, totals, all kinds of collectives; once a second the rest."""
    now_ns = time.monotonic_ns()
    seconds = [STEP_SECONDS * _SHARES.get(phase, 0.0) for phase in STEP_PHASES]
    for phase, spent in zip(STEP_PHASES, seconds, strict=True):
        page.floats[SLOT.word("phase_seconds") + PHASES.index(phase)] += spent
    page.count_step(step, STEP_SECONDS, 4096, 1)
    page.words[SLOT.word("present")] |= SLOT.presence["step"]
    for name, value in _KNOWN.items():
        page.words[SLOT.word("present")] |= SLOT.presence[name]
        page.floats[SLOT.word(name)] = value
    page.append(
        step=step,
        start_ns=now_ns,
        seconds=STEP_SECONDS,
        phase_seconds=seconds,
        loss=2.5,
        gradient_norm=0.5,
        tokens=4096,
        samples=1,
    )
    for kind in KIND.values:
        page.count_collective(kind, 2, _BYTES, STEP_SECONDS * 0.01)
    if step % _STEPS_A_PERIODIC == 0:
        for kind in KIND.values:
            page.periodic.count("bus_bytes", kind, _BYTES)
        page.periodic.know("resident_bytes", (1 << 30) + step)
        page.periodic.commit(now_ns)
    page.commit(now_ns)
    page.heartbeat(now_ns, PHASES.index("forward"))


def main() -> None:
    """Writes steps until the process is killed."""
    folder, num_jobs, num_ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    pages = [_open_page(folder, number, num_jobs, num_ranks) for number in range(num_ranks)]
    step, due_seconds = 0, time.monotonic()
    while True:
        step += 1
        for page in pages:
            _write_step(page, step)
        due_seconds += STEP_SECONDS
        time.sleep(max(due_seconds - time.monotonic(), 0.0))


if __name__ == "__main__":
    main()
