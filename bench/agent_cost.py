"""Measures the node agent on a fake node of 8 GPUs and 10 ports: ``make bench-agent``.

The GPUs have 18 NVLinks each; 8 ports are InfiniBand, 2 Ethernet. The GPUs are the C stub behind
the real pynvml, so the time of a real driver's calls is not in these figures, nor that of an
adapter's firmware; series, memory, processor time and scrapes of the agent are.
"""

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lockstep_agent.collectors.infiniband import Infiniband
from lockstep_agent.collectors.net import Net
from lockstep_agent.sources.open_files import OpenFiles

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))
fake: Any = importlib.import_module("agent.fake_node")
tree: Any = importlib.import_module("agent.fake_tree")
build: Any = importlib.import_module("agent.conftest").build_nvml

GPUS = 8
SCRAPERS = 10
TICKS = 200
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def running_agent(folder: Path, *, ports: bool = True) -> Iterator[tuple[int, str, float]]:
    """The agent at default settings: its pid, its address, seconds until the first sample."""
    fake.FakeNode(folder / "gpus", [fake.h100() for _ in range(GPUS)])
    command = [sys.executable, "-m", "lockstep_cli.main", "agent", "--listen", "127.0.0.1:0"]
    command += ["--dir", str(folder / "jobs"), "--nvml-library", str(build(folder))]
    if ports:
        tree.Tree(folder / "sys", gpus=GPUS, infiniband=8, ethernet=2)
        command += ["--sysfs", str(folder / "sys")]
    environment = {**os.environ, "NVML_STUB_STATE": str(folder / "gpus")}
    began = time.perf_counter()
    agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert agent.stderr is not None
    try:
        said = next(line for line in agent.stderr if line.startswith("serving "))
        yield agent.pid, said.split()[1], time.perf_counter() - began
    finally:
        agent.kill()
        agent.stderr.close()
        agent.wait()


def port_milliseconds(folder: Path, kept_open: int) -> float:
    """Processor time of one tick's read of 10 ports, of which so many files are kept open."""
    collectors: list[Infiniband | Net] = [Infiniband(str(folder / "sys")), Net(str(folder / "sys"))]
    for collector in collectors:
        collector._files = OpenFiles(most=kept_open)  # noqa: SLF001  # the very thing that is compared
        list(collector.collect())
    began = time.process_time()
    for _ in range(TICKS):
        for collector in collectors:
            list(collector.collect())
    return (time.process_time() - began) / TICKS * 1e3


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(rest[11]) + int(rest[12])) / TICKS_A_SECOND


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def scrape(url: str, times: int) -> list[float]:
    """Seconds of each of so many scrapes, one connection each, as Prometheus after a pause."""
    where = urlsplit(url)
    took = []
    for _ in range(times):
        began = time.perf_counter()
        connection = HTTPConnection(where.hostname or "", where.port)
        connection.request("GET", where.path)
        connection.getresponse().read()
        connection.close()
        took.append(time.perf_counter() - began)
    return took


def scrape_side_by_side(url: str, times: int) -> list[float]:
    """Seconds of all scrapes of ten scrapers at once."""
    took: list[float] = []
    threads = [
        threading.Thread(target=lambda: took.extend(scrape(url, times))) for _ in range(SCRAPERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def series_of(url: str) -> int:
    """Number of series in one scrape."""
    where = urlsplit(url)
    connection = HTTPConnection(where.hostname or "", where.port)
    connection.request("GET", where.path)
    text = connection.getresponse().read().decode()
    return sum(not line.startswith("#") for line in text.splitlines())


def main() -> None:
    """Prints every figure with its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long CPU is measured")
    parser.add_argument("--scrapes", type=int, default=10_000, help="memory is compared over")
    parser.add_argument("--without-ports", action="store_true", help="the real /sys instead")
    told = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,  # pages need a tmpfs
        running_agent(Path(folder), ports=not told.without_ports) as (pid, url, first_seconds),
    ):
        if not told.without_ports:
            opened, kept = (port_milliseconds(Path(folder), most) for most in (0, 256))
            print(f"10 ports, a tick   {opened:8.2f} ms   opened anew, {kept:.2f} ms kept open")
        print(f"first sample       {first_seconds:8.2f} s    limit 2")
        time.sleep(5)
        print(f"series             {series_of(url):8d}      limit 2000")
        before = processor_seconds(pid)
        time.sleep(told.seconds)
        share = (processor_seconds(pid) - before) / told.seconds
        print(f"processor          {share:8.2%}      limit 1 % of a core")
        took = sorted(scrape_side_by_side(url, told.scrapes // SCRAPERS // 10))
        early = resident_bytes(pid)
        print(f"scrape, median     {statistics.median(took) * 1e3:8.1f} ms   {SCRAPERS} at once")
        print(f"scrape, 99th       {took[len(took) * 99 // 100] * 1e3:8.1f} ms   limit 20")
        scrape_side_by_side(url, told.scrapes // SCRAPERS * 9 // 10)
        late = resident_bytes(pid)
        print(f"resident           {late / 2**20:8.1f} MiB  limit 80")
        print(f"growth             {(late - early) / 2**20:8.1f} MiB  over {told.scrapes} scrapes")


if __name__ == "__main__":
    main()
