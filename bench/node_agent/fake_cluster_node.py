"""The fake node that the agent is measured on, built by the tests' own parts, and its peers."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fake_cluster_ranks import RANKS

from lockstep_cli.gameday.fake_node import FakeNode, Tree, build_nvml, h100

REPOSITORY = Path(__file__).parents[2]

GPUS, PORTS = 8, 10
_DEBIAN = "prometheus-node-exporter"


def build_node(folder: Path) -> tuple[dict[str, str], Path]:
    """A node of 8 H100 and 10 ports in a folder: its environment, and its NVML library."""
    FakeNode(folder / "gpus", [h100() for _ in range(GPUS)])
    Tree(folder / "sys", gpus=GPUS, infiniband=8, ethernet=2)
    environment = {"NVML_STUB_STATE": str(folder / "gpus"), "NVML_STUB_POLL_SECONDS": "1"}
    return environment, build_nvml(folder)


class AbsentError(RuntimeError):
    """A peer that is not available; the text gives the reason."""


def fetch_node_exporter(folder: Path) -> Path:
    """Debian's node_exporter, fetched and unpacked in a folder, installed nowhere.

    Raises:
        AbsentError: apt gives none.
    """
    folder.mkdir(exist_ok=True)
    try:
        subprocess.run(
            ["apt-get", "download", _DEBIAN], cwd=folder, check=True, capture_output=True
        )
        [package] = folder.glob(f"{_DEBIAN}_*.deb")
        subprocess.run(["dpkg", "-x", package, folder / "root"], check=True, capture_output=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise AbsentError(f"apt-get download {_DEBIAN} failed ({type(error).__name__})") from error
    return folder / "root" / "usr" / "bin" / _DEBIAN


def find_nvitop(peers: Path) -> dict[str, str]:
    """The environment in which nvitop-exporter runs.

    Args:
        peers: folder into which bench/overhead/peers.txt was installed.

    Raises:
        AbsentError: it is not there.
    """
    if not (peers / "nvitop_exporter").is_dir():
        raise AbsentError(f"{peers} holds no nvitop_exporter; make {peers} says why")
    return {"PYTHONPATH": str(peers.absolute())}


@contextmanager
def training(jobs: Path, num_jobs: int = 1) -> Iterator[None]:
    """Eight ranks of so many jobs that write their pages while the block lasts."""
    command = [sys.executable, str(Path(__file__).with_name("fake_cluster_ranks.py"))]
    ranks = subprocess.Popen([*command, str(jobs), str(num_jobs)])
    try:
        while len(list(jobs.glob("jobs/*/*/rank-*.page"))) < RANKS:
            assert ranks.poll() is None, f"the ranks ended with {ranks.returncode}"
            time.sleep(0.1)
        yield
    finally:
        ranks.kill()
        ranks.wait()
