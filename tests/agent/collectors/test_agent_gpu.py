"""GPUs of four generations by a driver stub in C: base units, faults, missing calls."""

import logging
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep_agent.collector import COLLECTORS
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime, GpuWorkers
from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.sources.nvml import Driver, Fields
from lockstep_catalogue import agent, gpu, incidents
from lockstep_cli.gameday.fake_node import FakeNode, h100

from ..values import Values, values_in

H100, A100, T4, B200 = (
    (str(index), f"GPU-00000000-0000-0000-0000-{index:012d}") for index in range(4)
)
GPM_SECONDS = 0.11  # the driver rejects two GPM samples within 0.1 s


@pytest.fixture(name="sampler")
def _sampler(options: Options) -> Sampler:
    return Sampler(CollectorRuntime(options), 1)


@pytest.fixture(name="values")
def _values(sampler: Sampler) -> Values:
    """The readings of a sample in which every worker has run and the activity is known."""
    deadline = time.monotonic() + 40
    while True:
        values = values_in(sampler.sample().readings)
        are_up = all((gpu.GPU_UP, labels) in values for labels in (H100, A100, T4, B200))
        if are_up and (gpu.GPU_SM_ACTIVE, H100) in values:
            return values
        assert time.monotonic() < deadline, values
        time.sleep(GPM_SECONDS)


def test_what_the_golden_scrape_leaves_out_is_in_base_units(values: Values) -> None:
    """What no two scrapes share: samples between two ticks, energy, bytes."""
    assert 123_456_789 <= values[gpu.GPU_ENERGY, H100] < 123_456_789 + 650 * 3600
    assert values[gpu.NVLINK_BYTES, (*H100, "transmit")] >= 1_000_000 * 1024
    watts = {name: values[gpu.GPU_POWER_WINDOW, (*H100, name)] for name in ("min", "mean", "max")}
    assert watts["min"] == pytest.approx(480)
    assert watts["max"] == pytest.approx(600)  # one sample in ten is a peak
    assert watts["min"] < watts["mean"] < watts["max"]


def test_a_lost_gpu_is_down_and_its_series_go_while_the_others_stay(
    sampler: Sampler, node: FakeNode
) -> None:
    before = values_in(sampler.sample().readings)
    node.change(0, lost=15)
    values = values_in(sampler.sample().readings)
    assert values[gpu.GPU_UP, H100] == 0
    assert values[gpu.GPU_STATE_INFO, (*H100, "lost")] == 1
    remaining = {metric for metric, labels in values if labels[:2] == H100}
    assert remaining == {gpu.GPU_UP, gpu.GPU_STATE_INFO, incidents.GPU_HEALTH}
    others = {key for key in before if key[1][:2] in {A100, T4, B200}}
    assert others <= set(values)
    node.change(0, lost=16)
    assert values_in(sampler.sample().readings)[gpu.GPU_STATE_INFO, (*H100, "reset_required")] == 1
    node.change(0, lost=None)
    values = values_in(sampler.sample().readings)
    assert values[gpu.GPU_UP, H100] == 1
    assert values[gpu.GPU_ECC_ERRORS, (*H100, "corrected", "volatile")] == 0


def test_a_gpu_that_answers_no_call_is_down(sampler: Sampler, node: FakeNode) -> None:
    node.gpus[2] = {"nvmlDeviceGetUUID": T4[1]}
    node.write()
    assert values_in(sampler.sample().readings)[gpu.GPU_STATE_INFO, (*T4, "silent")] == 1


def test_an_unreadable_answer_costs_only_its_own_series(sampler: Sampler, node: FakeNode) -> None:
    node.set(0, "nvmlDeviceGetMarginTemperature", "!999")
    node.set(0, "field.186.0", None)
    node.set(0, "nvmlDeviceGetCurrPcieLinkWidth", "!3")
    values = values_in(sampler.sample().readings)
    for metric in (gpu.GPU_TEMPERATURE_MARGIN, gpu.GPU_POWER, gpu.GPU_PCIE_WIDTH):
        assert (metric, H100) not in values
        assert (metric, B200) in values or metric is gpu.GPU_TEMPERATURE_MARGIN
    assert values[gpu.GPU_POWER_AVERAGE, H100] == pytest.approx(629.45)


def test_a_field_that_spoils_its_batch_is_left_out(nvml_library: Path, node: FakeNode) -> None:
    node.set(0, "field.82.0", "!-1")
    driver = Driver(nvml_library)
    fields = Fields(driver.gpus[0], ((185, 0), (82, 0), (83, 0), (9999, 0)))
    for _ in range(2):
        assert set(fields.read()) == {(185, 0), (83, 0)}
    assert fields._batch.fields == ((185, 0), (83, 0))
    driver.close()


def test_a_released_driver_is_closed_and_opened_again(
    nvml_library: Path, node: FakeNode, tmp_path: Path
) -> None:
    library = Path(shutil.copy(nvml_library, tmp_path))  # a copy that no other test has open
    gpu_workers = GpuWorkers(lambda: Driver(library), tmp_path, 15)
    values = {reading.metric: reading.value for reading in gpu_workers.collect()}
    assert values[agent.DRIVER_RELEASED] == 0
    assert node.path in open_files()
    gpu_workers.release()
    values = {reading.metric: reading.value for reading in gpu_workers.collect()}
    assert values == {agent.DRIVER_RELEASED: 1}
    assert gpu_workers.workers == ()
    assert node.path not in open_files()
    assert library not in loaded_files()
    gpu_workers.resume()
    values = {reading.metric: reading.value for reading in gpu_workers.collect()}
    assert values[gpu.GPU_COUNT] == 4
    gpu_workers.release()
    list(gpu_workers.collect())


def open_files() -> set[Path]:
    return {link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


def loaded_files() -> set[Path]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {Path(line.split()[-1]) for line in maps}


def test_a_reloaded_driver_opens_anew(nvml_library: Path, node: FakeNode, tmp_path: Path) -> None:
    now = [0.0]
    gpu_workers = GpuWorkers(lambda: Driver(nvml_library), tmp_path, 15, lambda: now[0])
    list(gpu_workers.collect())
    assert len(gpu_workers.workers) == 4
    FakeNode(node.path, [h100() for _ in range(2)])
    for _ in range(3):
        now[0] += 11
        list(gpu_workers.collect())
    assert len(gpu_workers.workers) == 2
    gpu_workers.release()
    list(gpu_workers.collect())


def test_a_missing_driver_is_logged_once_and_tried_again(
    tmp_path: Path, nvml_library: Path, node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_text("no library")
    gpu_workers = GpuWorkers(lambda: Driver(library), tmp_path, 15, lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            now[0] += 61
            list(gpu_workers.collect())
    assert not gpu_workers.workers
    assert len(caplog.records) == 1
    library.unlink()
    library.symlink_to(nvml_library)
    list(gpu_workers.collect())
    assert not gpu_workers.workers
    now[0] += 61
    list(gpu_workers.collect())
    assert len(gpu_workers.workers) == len(node.gpus)
    gpu_workers.release()
    list(gpu_workers.collect())


def test_gpus_on_the_bus_and_of_the_driver_are_both_counted(
    options: Options, tmp_path: Path
) -> None:
    for index, (vendor, kind) in enumerate([("0x10de", "0x030200"), ("0x10de", "0x068000")]):
        device = tmp_path / "bus" / "pci" / "devices" / f"0000:0{index}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor)
        (device / "class").write_text(kind)
    sampler = Sampler(CollectorRuntime(replace(options, sysfs=tmp_path)), 1)
    values = values_in(sampler.sample().readings)
    assert values[gpu.GPU_COUNT, ("pci",)] == 1
    assert values[gpu.GPU_COUNT, ("nvml",)] == 4


def test_without_leaves_out_a_collector_by_its_name_and_every_collector_has_one(
    options: Options, values: Values
) -> None:
    assert values
    everything = replace(
        options, detail=True, dcgm="embedded", dcgm_exporter="http://127.0.0.1:1/metrics"
    )
    runs = Sampler(CollectorRuntime(everything), 1).sample().readings
    names = {each.labels[0] for each in runs if each.metric is agent.COLLECTOR_SUCCESS}
    assert names - {"health"} == {*COLLECTORS}
    some = replace(everything, without=("net", "gpu_power", "nvlink"))
    left = Sampler(CollectorRuntime(some), 1).sample().readings
    found = {each.labels[0] for each in left if each.metric is agent.COLLECTOR_SUCCESS}
    assert names - found == {"net", "gpu_power", "nvlink"}
