"""A fake node: a folder for jobs on the tmpfs, a driver made of C, network ports made of files."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep_agent.options import Options
from lockstep_records.jobs import CANDIDATE_ROOTS

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture(name="root")
def _root() -> Iterator[Path]:
    """A root of jobs on the tmpfs that pages need."""
    with tempfile.TemporaryDirectory(dir=CANDIDATE_ROOTS[0].parent) as folder:
        yield Path(folder)


@pytest.fixture(name="nvml_library", scope="session")
def _nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = FIXTURES / "nvml-stub" / "nvml.c"
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{library.name}"]
    subprocess.run(["gcc", *flags, "-o", library, source], check=True)
    return library


@pytest.fixture(name="gpu_state")
def _gpu_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the driver made of C reads its state from."""
    state = tmp_path / "gpus"
    state.write_text("")
    monkeypatch.setenv("NVML_STUB_STATE", str(state))
    return state


@pytest.fixture(name="options")
def _options(root: Path, nvml_library: Path, gpu_state: Path) -> Options:
    assert gpu_state.exists()
    return Options(
        host="127.0.0.1",
        port=0,
        root=root,
        cluster="east",
        node="node-7",
        tick_seconds=0.1,
        linger_seconds=60,
        window_seconds=15,
        sysfs=FIXTURES / "node" / "sys",
        procfs=Path("/proc"),
        nvml_library=nvml_library,
    )
