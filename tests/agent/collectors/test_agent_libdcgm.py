"""libdcgm by a stub in C behind the real loader: profiling fields under the names of GPM."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lockstep_agent.collectors.gpu.dcgm import FIELDS, DcgmProfiling
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.sources.dcgm import Dcgm, NoDcgmError
from lockstep_catalogue import gpu as gpu_metrics
from lockstep_cli.gameday.fake_node import FakeNode

from ..fake_tree import FIXTURES
from ..in_process import refused_message
from ..values import Values, values_of

UUID = "GPU-00000000-0000-0000-0000-{:012d}"
A100, T4 = ("1", UUID.format(1)), ("2", UUID.format(2))


@pytest.fixture(name="library", scope="session")
def _library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub library, compiled by the system's compiler."""
    path = tmp_path_factory.mktemp("dcgm") / "libdcgm.so.4"
    flags = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Werror"]
    source = FIXTURES / "dcgm-stub" / "dcgm.c"
    subprocess.run(["cc", *flags, "-o", path, source], check=True)
    return path


class FakeEngine:
    """The state file of the stub: values by GPU in DCGM's order, or -1 for the node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state: dict[tuple[int, str], object] = {(-1, "count"): 2}
        for gpu, index in ((0, 2), (1, 1)):
            self.state |= {(gpu, "52"): index, (gpu, "54"): UUID.format(index)}
        self.state |= {(1, str(field)): 0.25 for field in FIELDS}
        self.state |= {(1, "1010"): 3_000_000_000, (1, "1011"): 7_000_000_000}
        self.state[0, "1002"] = 0.5
        self.write()

    def set(self, gpu: int, key: str, value: object) -> None:
        self.state[gpu, key] = value
        self.write()

    def write(self) -> None:
        lines = [f"{gpu} {key} {value}\n" for (gpu, key), value in self.state.items()]
        self.path.write_text("".join(lines))

    @property
    def calls(self) -> list[str]:
        path = self.path.with_name(f"{self.path.name}.calls")
        return path.read_text().split() if path.exists() else []


@pytest.fixture(name="engine")
def _engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    monkeypatch.setenv("DCGM_STUB_STATE", str(tmp_path / "dcgm"))
    return FakeEngine(tmp_path / "dcgm")


class CollectorFixture:
    """A collector with a clock that a test advances."""

    def __init__(
        self, library: Path, address: str = "embedded", is_released: Callable[[], bool] = bool
    ) -> None:
        self.now = 0.0
        connect = partial(Dcgm, address, tuple(FIELDS), library)
        self.profiling = DcgmProfiling(connect, is_released, lambda: self.now)

    def values(self) -> Values:
        return values_of(self.profiling)


def test_profiling_fields_come_under_the_names_of_gpm_in_base_units(
    engine: FakeEngine, library: Path
) -> None:
    values = CollectorFixture(library).values()
    assert engine.calls == ["embedded"]
    assert len(values) == len(FIELDS) + 1
    assert values[gpu_metrics.GPU_SM_ACTIVE, A100] == 0.25
    assert values[gpu_metrics.GPU_SM_ACTIVE, T4] == 0.5
    assert values[gpu_metrics.GPU_TENSOR_ACTIVE, (*A100, "hmma")] == 0.25
    assert values[gpu_metrics.GPU_PCIE_RATE, (*A100, "receive")] == 3e9
    assert values[gpu_metrics.NVLINK_RATE, (*A100, "transmit")] == 7e9


@pytest.mark.parametrize("address", ["10.0.0.7", "localhost:5555", "unix:/run/nvidia/dcgm.sock"])
def test_a_running_host_engine_is_read_at_its_address(
    engine: FakeEngine, library: Path, address: str
) -> None:
    engine.set(-1, "engine", address)
    dcgm = Dcgm(address, tuple(FIELDS), library)
    assert len(list(dcgm.read())) == len(FIELDS) + 1
    dcgm.close()
    assert engine.calls == [address, "disconnected"]
    with pytest.raises(NoDcgmError, match="dcgmConnect_v2 gives -21, connection is not valid"):
        Dcgm("elsewhere", tuple(FIELDS), library)


def test_only_the_field_that_cannot_be_measured_with_the_others_is_left_out(
    engine: FakeEngine, library: Path
) -> None:
    engine.set(-1, "refused", 1015)
    values = CollectorFixture(library).values()
    assert (gpu_metrics.GPU_TENSOR_ACTIVE, (*A100, "dfma")) not in values
    assert len(values) == len(FIELDS)


@pytest.mark.parametrize(
    "text", ["!-6", "!-14", "140737488355328", "140737488355330", "~11 0.75", "nan", "<<<NULL>>>"]
)
def test_a_blank_old_or_refused_value_is_absent(
    engine: FakeEngine, library: Path, text: str
) -> None:
    engine.set(1, "1002", text)
    collector = CollectorFixture(library)
    collector.now = time.time()
    values = collector.values()
    assert (gpu_metrics.GPU_SM_ACTIVE, A100) not in values
    assert values[gpu_metrics.GPU_DRAM_ACTIVE, A100] == 0.25


def test_a_lost_engine_is_logged_once_and_tried_again_after_a_minute(
    engine: FakeEngine, library: Path, caplog: pytest.LogCaptureFixture
) -> None:
    collector = CollectorFixture(library)
    assert collector.values()
    engine.set(-1, "fails", -21)
    for _ in range(3):
        assert not collector.values()
        collector.now += 61
    del engine.state[-1, "fails"]
    engine.write()
    collector.now += 61
    assert collector.values()
    assert caplog.text.count("connection is not valid") == 1
    assert engine.calls.count("embedded") == engine.calls.count("stopped") + 1


@pytest.mark.parametrize(
    ("key", "value", "reason"), [("count", 0, "supports 0 GPUs"), ("count", 99, "supports 99 GPUs")]
)
def test_an_engine_without_gpus_is_closed(
    engine: FakeEngine, library: Path, key: str, value: int, reason: str
) -> None:
    engine.set(-1, key, value)
    with pytest.raises(NoDcgmError, match=reason):
        Dcgm("embedded", tuple(FIELDS), library)
    assert engine.calls == ["embedded", "stopped"]


def test_without_the_library_the_series_are_absent_and_it_is_logged_once(
    tmp_path: Path, nvml_library: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for library, reason in (
        (tmp_path / "libdcgm.so.4", "libdcgm cannot be loaded"),
        (nvml_library, "libdcgm lacks dcgmInit"),
    ):
        caplog.clear()
        collector = CollectorFixture(library)
        for _ in range(3):
            assert not collector.values()
            collector.now += 61
        assert caplog.text.count(reason) == 1


def test_the_library_is_released_with_the_driver(engine: FakeEngine, library: Path) -> None:
    released: list[bool] = []
    collector = CollectorFixture(library, is_released=lambda: bool(released))
    assert collector.values()
    released.append(True)
    assert not collector.values()
    assert engine.calls == ["embedded", "stopped"]
    released.clear()
    assert collector.values()


def test_an_agent_reads_older_gpus_by_libdcgm_and_newer_ones_by_their_driver(
    engine: FakeEngine, library: Path, options: Options, node: FakeNode
) -> None:
    engine.state |= {(0, "52"): 0, (0, "54"): UUID.format(0)}
    engine.write()
    assert node.gpus[0]["gpm.2"] == 88
    sampler = Sampler(CollectorRuntime(replace(options, dcgm="embedded", dcgm_library=library)), 1)
    sampler.sample()
    time.sleep(0.11)  # activity is the difference of two samples
    text = sampler.sample().text.decode()
    name = gpu_metrics.GPU_SM_ACTIVE.name
    assert f'{name}{{gpu="0",uuid="{UUID.format(0)}"}} 0.88' in text
    assert f'{name}{{gpu="1",uuid="{UUID.format(1)}"}} 0.25' in text


@pytest.mark.parametrize("engine", ["not it", "http://x", "host:port", "unix:dcgm", ""])
def test_an_invalid_engine_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    message = refused_message(monkeypatch, capsys, "agent", "--dcgm", engine)
    assert "give off, embedded, HOST[:PORT]" in message
