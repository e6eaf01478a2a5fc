"""A fake node: a folder for jobs on the tmpfs, a driver made of C, network ports made of files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep_agent.health.judge import ExpectedPort
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_worker import CollectorWorker
from lockstep_cli.gameday.fake_node import FakeNode, a100, b200, build_nvml, h100, t4

from .fake_tree import fill_procfs, fill_sysfs

FIXTURES = Path(__file__).parent.parent / "fixtures"
_CALL_TIMEOUT_SECONDS = 2.0


@pytest.fixture(name="root")
def _root(memory: Path) -> Path:
    return memory


@pytest.fixture(name="nvml_library", scope="session")
def _nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(name="node_folder", scope="session")
def _node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of /sys and /proc, the same for all tests: none writes there."""
    folder = tmp_path_factory.mktemp("node")
    fill_sysfs(folder / "sys")
    fill_procfs(folder / "proc")
    return folder


@pytest.fixture(name="node")
def _node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """Four GPUs of four generations; the driver made of C reads them from a file."""
    state = tmp_path / "gpus"
    monkeypatch.setenv("NVML_STUB_STATE", str(state))
    split = {"nvmlDeviceGetMigMode": 1, "nvmlDeviceGetMaxMigDeviceCount": 7, "instances": 2}
    return FakeNode(state, [h100(), a100(), t4(), b200() | split])


@pytest.fixture(name="options")
def _options(
    root: Path, nvml_library: Path, node: FakeNode, node_folder: Path, tmp_path: Path
) -> Options:
    assert node.path.exists()
    return Options(
        listen=("127.0.0.1", 0),
        root=root,
        cluster="east",
        node="node-7",
        tick_seconds=0.1,
        linger_seconds=60,
        hang_timeout_seconds=5,
        scrape_seconds=15,
        sysfs=node_folder / "sys",
        procfs=node_folder / "proc",
        detail=True,
        nvml_library=nvml_library,
        expect_gpus=4,
        expect_port=(ExpectedPort("mlx5_0"),),
        kmsg=FIXTURES / "kernel-log" / "node.log",
        fabric_manager_log=FIXTURES / "kernel-log" / "fabricmanager.log",
        state=tmp_path / "state",
    )


@pytest.fixture(autouse=True)
def _end_workers_with_the_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A call under way is waited for: the next test closes the driver's library."""
    workers: list[CollectorWorker] = []
    initialise = CollectorWorker.__init__

    def initialise_and_register(worker: CollectorWorker, *args: Any, **kwargs: Any) -> None:
        initialise(worker, *args, **kwargs)
        workers.append(worker)

    monkeypatch.setattr(CollectorWorker, "__init__", initialise_and_register)
    yield
    for worker in workers:
        worker.end(0)
    for worker in workers:
        worker.wait(_CALL_TIMEOUT_SECONDS)
