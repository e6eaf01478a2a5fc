"""GPUs through a driver made of C, and network ports made of files."""

import logging
from functools import partial
from pathlib import Path

import pytest

from lockstep_agent.collector import Reading
from lockstep_agent.collectors.gpu import Gpus
from lockstep_agent.collectors.net import Net
from lockstep_agent.options import Options
from lockstep_agent.sources.nvml import Driver
from lockstep_catalogue import Metric, fabric, gpu

Values = dict[tuple[Metric, tuple[str, ...]], float]
UUIDS = [f"GPU-00000000-0000-0000-0000-{index:012d}" for index in range(2)]
FIRST, SECOND = ("0", UUIDS[0]), ("1", UUIDS[1])


def values_of(collector: Gpus | Net) -> Values:
    readings = list(collector.collect())
    assert all(isinstance(reading, Reading) for reading in readings)
    return {(reading.metric, reading.labels): reading.value for reading in readings}


@pytest.fixture(name="gpus")
def _gpus(nvml_library: Path, gpu_state: Path) -> Gpus:
    assert gpu_state.exists()
    return Gpus(partial(Driver, nvml_library))


def test_a_gpu_is_told_in_base_units(gpus: Gpus) -> None:
    values = values_of(gpus)
    assert {metric for metric, _ in values} == set(gpu.METRICS)
    assert values[gpu.GPU_DRIVER_INFO, ("570.86.15",)] == 1
    assert values[gpu.GPU_INFO, (*SECOND, "NVIDIA H100 80GB HBM3")] == 1
    assert values[gpu.GPU_UTILIZATION, FIRST] == 0.97
    assert values[gpu.GPU_MEMORY_TOTAL, FIRST] == 80 << 30
    assert values[gpu.GPU_POWER, FIRST] == 650.5
    assert values[gpu.GPU_ENERGY, FIRST] == pytest.approx(123_456_789)
    assert values[gpu.GPU_CLOCK, (*FIRST, "sm")] == 1.98e9


def test_a_lost_gpu_is_down_and_the_other_goes_on(gpus: Gpus, gpu_state: Path) -> None:
    assert values_of(gpus)[gpu.GPU_UP, SECOND] == 1
    gpu_state.write_text("lost 1 1\n")
    values = values_of(gpus)
    assert values[gpu.GPU_UP, SECOND] == 0
    assert (gpu.GPU_POWER, SECOND) not in values
    assert (gpu.GPU_INFO, (*SECOND, "NVIDIA H100 80GB HBM3")) in values
    assert values[gpu.GPU_UP, FIRST] == 1
    gpu_state.write_text("")
    assert values_of(gpus)[gpu.GPU_UP, SECOND] == 1


def test_a_gpu_that_is_lost_before_the_start_is_down_without_a_uuid(
    gpus: Gpus, gpu_state: Path
) -> None:
    gpu_state.write_text("lost 1 1\n")
    assert values_of(gpus)[gpu.GPU_UP, ("1", "")] == 0


def test_what_a_driver_does_not_support_is_absent(gpus: Gpus, gpu_state: Path) -> None:
    gpu_state.write_text("nvmlDeviceGetPowerUsage 0 3\nnvmlDeviceGetTemperatureV 0 3\n")
    values = values_of(gpus)
    assert (gpu.GPU_POWER, FIRST) not in values
    assert (gpu.GPU_POWER, SECOND) in values
    assert values[gpu.GPU_TEMPERATURE, FIRST] == 61
    assert values[gpu.GPU_UP, FIRST] == 1


def test_a_gpu_that_answers_no_call_is_down(gpus: Gpus, gpu_state: Path) -> None:
    unknown_error = 999
    calls = ("UtilizationRates", "MemoryInfo", "PowerUsage", "TotalEnergyConsumption")
    more = ("TemperatureV", "Temperature", "ClockInfo")
    lines = [f"nvmlDeviceGet{call} 0 {unknown_error}\n" for call in (*calls, *more)]
    gpu_state.write_text("".join(lines))
    assert values_of(gpus)[gpu.GPU_UP, FIRST] == 0


def test_no_driver_is_said_once_and_looked_for_again(
    tmp_path: Path, nvml_library: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_text("no library")
    gpus = Gpus(partial(Driver, library), lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            now[0] += 61
            assert not values_of(gpus)
    assert len(caplog.records) == 1
    library.unlink()
    library.symlink_to(nvml_library)
    assert not values_of(gpus)
    now[0] += 61
    assert values_of(gpus)


def test_ports_are_told_by_files_and_garbage_is_absent(options: Options) -> None:
    values = values_of(Net(options.sysfs))
    fast, down = "ens1f0np0", "ens1f1np1"
    assert {labels[0] for _, labels in values} == {fast, down}
    assert values[fabric.NET_UP, (fast,)] == 1
    assert values[fabric.NET_SPEED, (fast,)] == 50e9
    assert values[fabric.NET_BYTES, (fast, "receive")] == 918_273_645_546
    assert values[fabric.NET_DROPPED, (fast, "receive")] == 12
    assert values[fabric.NET_CARRIER_CHANGES, (down,)] == 5
    assert values[fabric.NET_UP, (down,)] == 0
    assert (fabric.NET_SPEED, (down,)) not in values
    assert (fabric.NET_ERRORS, (down, "receive")) not in values
    assert (fabric.NET_ERRORS, (down, "transmit")) in values


def test_in_a_container_the_virtual_port_is_the_port(tmp_path: Path) -> None:
    for name, state in (("lo", "unknown"), ("eth0", "up"), ("tun0", "unknown")):
        port = tmp_path / "class" / "net" / name
        port.mkdir(parents=True)
        (port / "operstate").write_text(state)
    assert values_of(Net(tmp_path)) == {(fabric.NET_UP, ("eth0",)): 1}


def test_a_node_without_network_folder_has_no_ports(tmp_path: Path) -> None:
    assert not values_of(Net(tmp_path))
