"""Measures the node agent and its peers on the same fake node: ``make bench-agent``.

The node: 8 GPUs with 18 NVLinks each, 10 RDMA ports, 8 ranks with six kinds of collectives that
write their pages all the time. The GPUs are the C stub behind the real pynvml, so the time of a
real driver's calls is not in these figures; series, memory, processor time and scrapes are. The
peers are Debian's node_exporter, unpacked without being installed, and nvitop-exporter out of
``bench/overhead/peers.txt``; one that cannot be installed is named below the table, with the
reason.
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from fake_cluster_node import (
    PORTS,
    AbsentError,
    build_node,
    fetch_node_exporter,
    find_nvitop,
    training,
)
from fake_cluster_ranks import RANKS

from lockstep_catalogue.limits import DECLARED
from lockstep_records.text.durations import parse_duration

SCRAPERS = 10
WARM_UP_SECONDS = 10.0
SCRAPE_SECONDS = float(DECLARED.scrape_seconds)
PEER_SCRAPES = 500
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LIMITS = {
    "first sample": "under 2 s",
    "series": "under 2,000",
    "processor": "under 1 %",
    "scrape, 99th": "under 20 ms",
    "resident, end": "under 80 MiB",
    "growth": "flat",
}


@dataclass(frozen=True, kw_only=True)
class Program:
    """One exporter to measure."""

    name: str
    command: list[str]
    url: str
    scrapes: int = PEER_SCRAPES
    environment: dict[str, str] = field(default_factory=dict)


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(rest[11]) + int(rest[12])) / TICKS_A_SECOND


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


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


def processor_share(pid: int, url: str, seconds: float) -> float:
    """Share of one core that a process takes while it is scraped as declared."""
    before, began = processor_seconds(pid), time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        get(url)
        time.sleep(min(SCRAPE_SECONDS, max(seconds - passed, 0.1)))
    return (processor_seconds(pid) - before) / (time.monotonic() - began)


def measure(program: Program, seconds: float) -> dict[str, str]:
    """Every figure of one program, as it is printed; memory after each of three lots of scrapes."""
    each = max(program.scrapes // SCRAPERS, 10)
    lots = (each // 10, each // 2 - each // 10, each - each // 2)
    took: list[float] = []
    resident: list[float] = []
    with running(program) as (pid, first_seconds):
        time.sleep(WARM_UP_SECONDS)
        share = processor_share(pid, program.url, seconds)
        series = series_of(program.url)
        for lot in lots:
            took += scrape_side_by_side(program.url, lot)
            resident.append(resident_bytes(pid) / 2**20)
    took.sort()
    return {
        "first sample": f"{first_seconds:.2f} s",
        "series": f"{series:,}",
        "processor": f"{share:.2%}",
        "scrapes": f"{len(took):,}",
        "scrape, median": f"{statistics.median(took) * 1e3:.1f} ms",
        "scrape, 99th": f"{took[len(took) * 99 // 100] * 1e3:.1f} ms",
        "resident, 10 %": f"{resident[0]:.1f} MiB",
        "resident, half": f"{resident[1]:.1f} MiB",
        "resident, end": f"{resident[2]:.1f} MiB",
        "growth": f"{resident[2] - resident[0]:+.1f} MiB",
    }


@dataclass(frozen=True, kw_only=True)
class Node:
    """Where everything of the fake node is.

    Attributes:
        environment: what the driver made of C needs.
        scrapes: how many the agent gets.
        tick: of the agent; None for its default.
    """

    folder: Path
    library: Path
    environment: dict[str, str]
    peers: Path
    scrapes: int
    tick: str | None


def agent(node: Node) -> Program:
    """The agent with its defaults."""
    url = f"http://127.0.0.1:{free_port()}/metrics"
    command = [sys.executable, "-m", "lockstep_cli.main", "agent"]
    command += ["--dir", str(node.folder / "lockstep"), "--listen", urlsplit(url).netloc]
    command += ["--state", str(node.folder / "state")]
    command += ["--sysfs", str(node.folder / "sys"), "--nvml-library", str(node.library)]
    command += ["--tick", node.tick] if node.tick else []
    return Program(
        name="lockstep agent",
        command=[*command, "--node", "node-0001"],
        url=url,
        scrapes=node.scrapes,
        environment=node.environment,
    )


def node_exporter(node: Node) -> Program:
    """Debian's, with its defaults, on the same tree."""
    url = f"http://127.0.0.1:{free_port()}/metrics"
    exporter = fetch_node_exporter(node.folder / "fetched")
    command = [str(exporter), f"--path.sysfs={node.folder / 'sys'}"]
    command += [f"--web.listen-address={urlsplit(url).netloc}", "--log.level=error"]
    return Program(name="node_exporter", command=command, url=url)


def nvitop_exporter(node: Node) -> Program:
    """With its defaults, on the same driver."""
    port = free_port()
    command = [sys.executable, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1"]
    loader = {"LD_LIBRARY_PATH": str(node.library.parent)}
    return Program(
        name="nvitop-exporter",
        command=[*command, "--port", str(port)],
        url=f"http://127.0.0.1:{port}/metrics",
        environment=node.environment | loader | find_nvitop(node.peers),
    )


def print_table(figures: dict[str, dict[str, str]], absent: dict[str, str]) -> None:
    """Prints the figures as a table, a column a program, and the programs that are missing."""
    names = list(figures)
    print(f"{'':<16}{'limit':<14}" + "".join(f"{name:<18}" for name in names))
    for row in next(iter(figures.values())):
        cells = "".join(f"{figures[name][row]:<18}" for name in names)
        print(f"{row:<16}{LIMITS.get(row, ''):<14}{cells}")
    for name, reason in absent.items():
        print(f"{name} is not in the table: {reason}")


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--duration",
        type=parse_duration,
        default=60.0,
        help="how long CPU is measured, such as 60s",
    )
    parser.add_argument("--scrapes", type=int, default=10_000, help="how many the agent gets")
    parser.add_argument(
        "--peers", type=Path, default=Path(".venv/peers"), help="folder of the peers"
    )
    parser.add_argument(
        "--jobs", type=int, choices=(1, 2, 4), default=1, help="jobs that share the eight ranks"
    )
    parser.add_argument("--tick", help="of the agent, such as 1s; by default its own")
    parser.add_argument("--no-peers", action="store_true", help="leave the peers out")
    return parser.parse_args()


def main() -> None:
    """Prints every figure with its limit."""
    options = parse_arguments()
    figures: dict[str, dict[str, str]] = {}
    absent: dict[str, str] = {}
    # pages need a tmpfs
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        folder = Path(scratch)
        (folder / "lockstep").mkdir()
        environment, library = build_node(folder)
        node = Node(
            folder=folder,
            library=library,
            environment=environment,
            peers=options.peers,
            scrapes=options.scrapes,
            tick=options.tick,
        )
        with training(folder / "lockstep", options.jobs):
            for build_program in (
                (agent,) if options.no_peers else (agent, node_exporter, nvitop_exporter)
            ):
                try:
                    program = build_program(node)
                except AbsentError as error:
                    absent[build_program.__name__] = str(error)
                    continue
                figures[program.name] = measure(program, options.duration)
    print(
        f"8 GPUs, {PORTS} ports, {RANKS} ranks of {options.jobs} jobs, six kinds of collectives; "
        f"processor while scraped every {SCRAPE_SECONDS:.0f} s; {SCRAPERS} scrapers at once, "
        "a connection a scrape"
    )
    print_table(figures, absent)


if __name__ == "__main__":
    main()
