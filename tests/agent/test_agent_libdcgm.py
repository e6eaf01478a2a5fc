"""libdcgm, made of C behind the real loading code: profiling fields under the names of GPM."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lockstep_agent.collectors.dcgm import FIELDS, Profiling
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.sources.dcgm import Dcgm, NoDcgmError
from lockstep_catalogue import Metric, gpu_activity, gpu_pcie, nvlink

from .conftest import FIXTURES
from .fake_node import FakeNode
from .test_agent_web import refused

UUID = "GPU-00000000-0000-0000-0000-{:012d}"
A100, T4 = ("1", UUID.format(1)), ("2", UUID.format(2))
Values = dict[tuple[Metric, tuple[str, ...]], float]


@pytest.fixture(name="library", scope="session")
def _library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library made of C, compiled by the system's compiler."""
    path = tmp_path_factory.mktemp("dcgm") / "libdcgm.so.4"
    flags = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Werror"]
    source = FIXTURES / "dcgm-stub" / "dcgm.c"
    subprocess.run(["cc", *flags, "-o", path, source], check=True)
    return path


class FakeEngine:
    """What the library reads: by GPU, in an order of its own, or -1 for the node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: dict[tuple[int, str], object] = {(-1, "count"): 2}
        for gpu, index in ((0, 2), (1, 1)):
            self.told |= {(gpu, "52"): index, (gpu, "54"): UUID.format(index)}
        self.told |= {(1, str(field)): 0.25 for field in FIELDS}
        self.told |= {(1, "1010"): 3_000_000_000, (1, "1011"): 7_000_000_000}
        self.told[0, "1002"] = 0.5
        self.write()

    def set(self, gpu: int, key: str, value: object) -> None:
        self.told[gpu, key] = value
        self.write()

    def write(self) -> None:
        lines = [f"{gpu} {key} {value}\n" for (gpu, key), value in self.told.items()]
        self.path.write_text("".join(lines))

    @property
    def calls(self) -> list[str]:
        path = self.path.with_name(f"{self.path.name}.calls")
        return path.read_text().split() if path.exists() else []


@pytest.fixture(name="engine")
def _engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    monkeypatch.setenv("DCGM_STUB_STATE", str(tmp_path / "dcgm"))
    return FakeEngine(tmp_path / "dcgm")


class Watch:
    """A collector with a clock that a test sets forward."""

    def __init__(
        self, library: Path, where: str = "embedded", is_released: Callable[[], bool] = bool
    ) -> None:
        self.now = 0.0
        connect = partial(Dcgm, where, tuple(FIELDS), library)
        self.profiling = Profiling(connect, is_released, lambda: self.now)

    def values(self) -> Values:
        return {(one.metric, one.labels): one.value for one in self.profiling.collect()}


def test_profiling_fields_come_under_the_names_of_gpm_in_base_units(
    engine: FakeEngine, library: Path
) -> None:
    values = Watch(library).values()
    assert engine.calls == ["embedded"]
    assert len(values) == len(FIELDS) + 1
    assert values[gpu_activity.GPU_SM_ACTIVE, A100] == 0.25
    assert values[gpu_activity.GPU_SM_ACTIVE, T4] == 0.5
    assert values[gpu_activity.GPU_TENSOR_ACTIVE, (*A100, "hmma")] == 0.25
    assert values[gpu_pcie.GPU_PCIE_RATE, (*A100, "receive")] == 3e9
    assert values[nvlink.NVLINK_RATE, (*A100, "transmit")] == 7e9


@pytest.mark.parametrize("where", ["10.0.0.7", "localhost:5555", "unix:/run/nvidia/dcgm.sock"])
def test_a_running_host_engine_is_asked_at_its_address(
    engine: FakeEngine, library: Path, where: str
) -> None:
    engine.set(-1, "engine", where)
    dcgm = Dcgm(where, tuple(FIELDS), library)
    assert len(list(dcgm.read())) == len(FIELDS) + 1
    dcgm.close()
    assert engine.calls == [where, "disconnected"]
    with pytest.raises(NoDcgmError, match="dcgmConnect_v2 gives -21, connection is not valid"):
        Dcgm("elsewhere", tuple(FIELDS), library)


def test_a_field_that_cannot_be_measured_beside_the_others_is_left_out_alone(
    engine: FakeEngine, library: Path
) -> None:
    engine.set(-1, "refused", 1015)
    values = Watch(library).values()
    assert (gpu_activity.GPU_TENSOR_ACTIVE, (*A100, "dfma")) not in values
    assert len(values) == len(FIELDS)


@pytest.mark.parametrize(
    "told", ["!-6", "!-14", "140737488355328", "140737488355330", "~11 0.75", "nan", "<<<NULL>>>"]
)
def test_what_is_blank_old_or_refused_is_absent(
    engine: FakeEngine, library: Path, told: str
) -> None:
    engine.set(1, "1002", told)
    watch = Watch(library)
    watch.now = time.time()
    values = watch.values()
    assert (gpu_activity.GPU_SM_ACTIVE, A100) not in values
    assert values[gpu_activity.GPU_DRAM_ACTIVE, A100] == 0.25


def test_an_engine_that_is_lost_is_said_once_and_looked_for_again_after_a_minute(
    engine: FakeEngine, library: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(library)
    assert watch.values()
    engine.set(-1, "fails", -21)
    for _ in range(3):
        assert not watch.values()
        watch.now += 61
    del engine.told[-1, "fails"]
    engine.write()
    watch.now += 61
    assert watch.values()
    assert caplog.text.count("connection is not valid") == 1
    assert engine.calls.count("embedded") == engine.calls.count("stopped") + 1


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [("count", 0, "supports 0 GPUs"), ("count", 99, "supports 99 GPUs")],
)
def test_an_engine_without_gpus_is_let_go_of(
    engine: FakeEngine, library: Path, key: str, value: int, reason: str
) -> None:
    engine.set(-1, key, value)
    with pytest.raises(NoDcgmError, match=reason):
        Dcgm("embedded", tuple(FIELDS), library)
    assert engine.calls == ["embedded", "stopped"]


def test_without_the_library_the_series_are_absent_and_it_is_said_once(
    tmp_path: Path, nvml_library: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for library, reason in (
        (tmp_path / "libdcgm.so.4", "there is no libdcgm"),
        (nvml_library, "libdcgm lacks dcgmInit"),
    ):
        caplog.clear()
        watch = Watch(library)
        for _ in range(3):
            assert not watch.values()
            watch.now += 61
        assert caplog.text.count(reason) == 1


def test_when_the_driver_is_let_go_of_the_library_is_too(engine: FakeEngine, library: Path) -> None:
    released: list[bool] = []
    watch = Watch(library, is_released=lambda: bool(released))
    assert watch.values()
    released.append(True)
    assert not watch.values()
    assert engine.calls == ["embedded", "stopped"]
    released.clear()
    assert watch.values()


def test_an_agent_tells_older_gpus_by_libdcgm_and_newer_ones_by_their_driver(
    engine: FakeEngine, library: Path, options: Options, node: FakeNode
) -> None:
    engine.told |= {(0, "52"): 0, (0, "54"): UUID.format(0)}
    engine.write()
    assert node.gpus[0]["gpm.2"] == 88
    sampler = Sampler(CollectorRuntime(replace(options, dcgm="embedded", dcgm_library=library)), 1)
    sampler.sample()
    time.sleep(0.11)  # activity is told between two samples
    text = sampler.sample().text.decode()
    told = gpu_activity.GPU_SM_ACTIVE.name
    assert f'{told}{{gpu="0",uuid="{UUID.format(0)}"}} 0.88' in text
    assert f'{told}{{gpu="1",uuid="{UUID.format(1)}"}} 0.25' in text


@pytest.mark.parametrize("engine", ["not it", "http://x", "host:port", "unix:dcgm", ""])
def test_an_engine_that_cannot_be_is_refused_in_one_sentence(root: Path, engine: str) -> None:
    assert "give off, embedded, HOST[:PORT]" in refused(root, "--dcgm", engine)
