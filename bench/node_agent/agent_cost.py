"""Measures the node agent and its peers on the same fake node: ``make bench-agent``.

The node: 8 GPUs or ``--gpus`` with 18 NVLinks each, 10 RDMA ports, a rank a GPU with six kinds of
collectives that writes its page all the time. The GPUs are the C stub behind the real pynvml, so
the time of a real driver's calls is not in these figures. The peers are Debian's node_exporter,
unpacked without being installed, and nvitop-exporter out of ``bench/overhead/peers.txt``; one that
cannot be installed is named below the table, with the reason.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from simulated_cluster.fake_node import (
    GPUS,
    PORTS,
    Program,
    agent,
    build_node,
    get,
    running,
    series_of,
    training,
)

from lockstep_catalogue.limits import DECLARED
from lockstep_cli.small_server import free_port
from lockstep_records.text.durations import parse_duration

SCRAPERS = 10
WARM_UP_SECONDS = 10.0
SCRAPE_SECONDS = float(DECLARED.scrape_seconds)
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


_DEBIAN = "prometheus-node-exporter"


class AbsentError(RuntimeError):
    """A peer that is not available; the text gives the reason."""


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(rest[11]) + int(rest[12])) / TICKS_A_SECOND


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


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


def node_exporter(folder: Path) -> Program:
    """Debian's, fetched and unpacked without being installed, with its defaults, on the node."""
    fetched = folder / "fetched"
    fetched.mkdir(exist_ok=True)
    try:
        subprocess.run(
            ["apt-get", "download", _DEBIAN], cwd=fetched, check=True, capture_output=True
        )
        [package] = fetched.glob(f"{_DEBIAN}_*.deb")
        subprocess.run(["dpkg", "-x", package, fetched / "root"], check=True, capture_output=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise AbsentError(f"apt-get download {_DEBIAN} failed ({type(error).__name__})") from error
    url = f"http://127.0.0.1:{free_port()}/metrics"
    command = [str(fetched / "root" / "usr" / "bin" / _DEBIAN), f"--path.sysfs={folder / 'sys'}"]
    command += [f"--web.listen-address={urlsplit(url).netloc}", "--log.level=error"]
    return Program(name="node_exporter", command=command, url=url)


def nvitop_exporter(folder: Path, peers: Path, environment: dict[str, str]) -> Program:
    """With its defaults, on the same driver; ``peers``: where peers.txt was installed."""
    if not (peers / "nvitop_exporter").is_dir():
        raise AbsentError(f"{peers} holds no nvitop_exporter; make {peers} says why")
    port = free_port()
    command = [sys.executable, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1"]
    of_peer = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(peers.absolute())}
    return Program(
        name="nvitop-exporter",
        command=[*command, "--port", str(port)],
        url=f"http://127.0.0.1:{port}/metrics",
        environment=environment | of_peer,
    )


def print_table(figures: dict[str, dict[str, str]], absent: list[str]) -> None:
    """Prints the figures as a table, a column a program, and the programs that are missing."""
    names = list(figures)
    print(f"{'':<16}{'limit':<14}" + "".join(f"{name:<18}" for name in names))
    for row in next(iter(figures.values())):
        cells = "".join(f"{figures[name][row]:<18}" for name in names)
        print(f"{row:<16}{LIMITS.get(row, ''):<14}{cells}")
    for reason in absent:
        print(f"not in the table: {reason}")


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
    parser.add_argument("--gpus", type=int, default=GPUS, help="of the node, each with a rank")
    parser.add_argument("--tick", help="of the agent, such as 1s; by default its own")
    parser.add_argument("--no-peers", action="store_true", help="leave the peers out")
    return parser.parse_args()


def main() -> None:
    """Prints every figure with its limit."""
    options = parse_arguments()
    figures: dict[str, dict[str, str]] = {}
    absent: list[str] = []
    # pages need a tmpfs
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        folder = Path(scratch)
        (folder / "lockstep").mkdir()
        environment, _ = build_node(folder, options.gpus)
        tick = ("--tick", options.tick) if options.tick else ()
        programs: tuple[Callable[[], Program], ...] = (
            lambda: agent(folder, *tick, environment=environment, scrapes=options.scrapes),
            lambda: node_exporter(folder),
            lambda: nvitop_exporter(folder, options.peers, environment),
        )
        with training(folder / "lockstep", options.jobs, options.gpus):
            for build_program in programs[:1] if options.no_peers else programs:
                try:
                    program = build_program()
                    figures[program.name] = measure(program, options.duration)
                except AbsentError as error:
                    absent.append(str(error))
    print(
        f"{options.gpus} GPUs and ranks of {options.jobs} jobs, {PORTS} ports; "
        f"processor while scraped every {SCRAPE_SECONDS:.0f} s; {SCRAPERS} scrapers at once, "
        "a connection a scrape"
    )
    print_table(figures, absent)


if __name__ == "__main__":
    main()
