"""The node that the agent is measured on, made by the tests' own parts, and its peers."""

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))
_gpus: Any = importlib.import_module("agent.fake_node")
_tree: Any = importlib.import_module("agent.fake_tree")
_conftest: Any = importlib.import_module("agent.conftest")

GPUS, RANKS, PORTS = 8, 8, 10
_DEBIAN = "prometheus-node-exporter"


def build_node(folder: Path) -> tuple[dict[str, str], Path]:
    """A node of 8 H100 and 10 ports in a folder: its environment, and its NVML library."""
    _gpus.FakeNode(folder / "gpus", [_gpus.h100() for _ in range(GPUS)])
    _tree.Tree(folder / "sys", gpus=GPUS, infiniband=8, ethernet=2)
    environment = {"NVML_STUB_STATE": str(folder / "gpus"), "NVML_STUB_LOOK_SECONDS": "1"}
    return environment, _conftest.build_nvml(folder)


def fetch_node_exporter(folder: Path) -> Path | None:
    """Debian's node_exporter, unpacked in a folder; None where apt has none."""
    folder.mkdir(exist_ok=True)
    try:
        subprocess.run(
            ["apt-get", "download", _DEBIAN], cwd=folder, check=True, capture_output=True
        )
        [package] = folder.glob(f"{_DEBIAN}_*.deb")
        subprocess.run(["dpkg", "-x", package, folder / "root"], check=True, capture_output=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"left out: {_DEBIAN} cannot be had ({type(error).__name__})", file=sys.stderr)
        return None
    return folder / "root" / "usr" / "bin" / _DEBIAN


def fetch_nvitop() -> list[str] | None:
    """The command of nvitop-exporter; None where it is not installed."""
    if importlib.util.find_spec("nvitop_exporter") is None:
        print("left out: pip install nvitop-exporter to compare with it", file=sys.stderr)
        return None
    return [sys.executable, "-m", "nvitop_exporter"]
