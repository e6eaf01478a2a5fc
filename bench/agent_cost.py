"""Measures the node agent on a fake node, beside its peers on the same one: ``make bench-agent``.

The node: 8 GPUs with 18 NVLinks each, 10 RDMA ports, 8 simulated ranks that write their pages all
the time. The GPUs are the C stub behind the real pynvml, so the time of a real driver's calls is
not in these figures; series, memory, processor time and scrapes are. The peers, each left out with
a word where it cannot be had: Debian's node_exporter, fetched and unpacked without being installed,
and nvitop-exporter from PyPI.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from fake_cluster_node import PORTS, RANKS, build_node, fetch_node_exporter, fetch_nvitop

SCRAPERS = 10
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
WARM_UP_SECONDS = 15.0
LIMITS = {
    "first sample": "under 2 s",
    "series": "under 2,000",
    "processor": "under 1 %",
    "resident": "under 80 MiB",
    "scrape, 99th": "under 20 ms",
    "growth": "flat",
}


@dataclass(frozen=True, kw_only=True)
class Program:
    """One exporter to measure."""

    name: str
    command: list[str]
    url: str
    environment: dict[str, str] = field(default_factory=dict)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert isinstance(port, int)
        return port


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


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(rest[11]) + int(rest[12])) / TICKS_A_SECOND


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def get(url: str) -> bytes:
    """One scrape on a connection of its own, as it is without being squeezed."""
    where = urlsplit(url)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=30)
    try:
        connection.request("GET", where.path)
        return connection.getresponse().read()
    finally:
        connection.close()


def series_of(url: str) -> int:
    """Number of series in one scrape, 0 while nobody answers."""
    try:
        text = get(url).decode()
    except OSError:
        return 0
    return sum(not line.startswith("#") for line in text.splitlines() if line)


def scrape_side_by_side(url: str, times: int) -> list[float]:
    """Seconds of all scrapes of ten scrapers at once, so many each."""
    took: list[float] = []

    def scrape() -> None:
        for _ in range(times):
            began = time.perf_counter()
            get(url)
            took.append(time.perf_counter() - began)

    threads = [threading.Thread(target=scrape) for _ in range(SCRAPERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(took)


def measure(program: Program, seconds: float, scrapes: int) -> dict[str, str]:
    """Every figure of one program, as it is printed.

    Args:
        program: what to start and where it serves.
        seconds: how long its processor time is measured, scraped by nobody.
        scrapes: over how many its memory is compared.
    """
    with running(program) as (pid, first_seconds):
        time.sleep(WARM_UP_SECONDS)
        before = processor_seconds(pid)
        time.sleep(seconds)
        share = (processor_seconds(pid) - before) / seconds
        series = series_of(program.url)
        took = scrape_side_by_side(program.url, max(scrapes // SCRAPERS // 10, 1))
        early = resident_bytes(pid)
        scrape_side_by_side(program.url, scrapes // SCRAPERS * 9 // 10)
        late = resident_bytes(pid)
    return {
        "first sample": f"{first_seconds:.2f} s",
        "series": f"{series:,}",
        "processor": f"{share:.2%}",
        "resident": f"{late / 2**20:.1f} MiB",
        "scrape, median": f"{statistics.median(took) * 1e3:.1f} ms",
        "scrape, 99th": f"{took[len(took) * 99 // 100] * 1e3:.1f} ms",
        "growth": f"{(late - early) / 2**20:+.1f} MiB",
    }


def programs(folder: Path, jobs: Path, fetched: Path) -> Iterator[Program]:
    """The agent and its peers on one node; a peer that cannot be had is said on stderr."""
    environment, library = build_node(folder)
    url = f"http://127.0.0.1:{free_port()}/metrics"
    agent = [sys.executable, "-m", "lockstep_cli.main", "agent", "--dir", str(jobs)]
    agent += ["--listen", urlsplit(url).netloc, "--sysfs", str(folder / "sys")]
    agent += ["--nvml-library", str(library), "--node", "node-0001"]
    yield Program(name="lockstep agent", command=agent, url=url, environment=environment)
    if exporter := fetch_node_exporter(fetched):
        url = f"http://127.0.0.1:{free_port()}/metrics"
        command = [str(exporter), f"--path.sysfs={folder / 'sys'}"]
        command += [f"--web.listen-address={urlsplit(url).netloc}", "--log.level=error"]
        yield Program(name="node_exporter", command=command, url=url)
    if nvitop := fetch_nvitop():
        port = free_port()
        url = f"http://127.0.0.1:{port}/metrics"
        command = [*nvitop, "--bind-address", "127.0.0.1", "--port", str(port)]
        more = environment | {"LD_LIBRARY_PATH": str(library.parent)}
        yield Program(name="nvitop-exporter", command=command, url=url, environment=more)


@contextmanager
def training(jobs: Path) -> Iterator[None]:
    """Eight simulated ranks that write their pages for as long as the block lasts."""
    command = [sys.executable, "-m", "lockstep_cli.main", "train", "--simulate"]
    command += ["--dir", str(jobs), "--ranks", str(RANKS), "--step-seconds", "0.2"]
    command += ["--steps", "1000000000", "--job-id", "bench"]
    ranks = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while len(list(jobs.glob("jobs/*/*/rank-*.page"))) < RANKS:
            assert ranks.poll() is None, f"the simulated ranks ended with {ranks.returncode}"
            time.sleep(0.1)
        yield
    finally:
        ranks.kill()
        ranks.wait()


def show(told: dict[str, dict[str, str]]) -> None:
    """Prints the figures as a table, a column a program."""
    names = list(told)
    print(f"{'':<16}{'limit':<14}" + "".join(f"{name:<18}" for name in names))
    for row in next(iter(told.values())):
        cells = "".join(f"{told[name][row]:<18}" for name in names)
        print(f"{row:<16}{LIMITS.get(row, ''):<14}{cells}")


def main() -> None:
    """Prints every figure with its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long CPU is measured")
    parser.add_argument("--scrapes", type=int, default=10_000, help="memory is compared over")
    parser.add_argument("--alone", action="store_true", help="leave the peers out")
    options = parser.parse_args()
    with ExitStack() as stack:
        # pages need a tmpfs
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        jobs = folder / "lockstep"
        jobs.mkdir()
        stack.enter_context(training(jobs))
        told = {}
        for program in programs(folder, jobs, folder / "fetched"):
            told[program.name] = measure(program, options.seconds, options.scrapes)
            if options.alone:
                break
        print(f"8 GPUs, {PORTS} ports, {RANKS} ranks; {SCRAPERS} scrapers at once")
        show(told)


if __name__ == "__main__":
    main()
