"""``lockstep doctor --gpu``: GPUs of the stub, and figures beside what they are compared with."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep_agent.doctor import checkup, gpu_fitness
from lockstep_agent.doctor.command import doctor
from lockstep_cli.gameday.fake_node import FakeNode, h100

H100 = "NVIDIA H100 80GB HBM3"


def figure(probe: str, value: float) -> dict[str, Any]:
    unit = "flops_per_second" if probe == "gemm" else "bytes_per_second"
    index = None if probe == "all_reduce" else 0
    return {"probe": probe, "device": H100, "index": index, "value": value, "unit": unit}


FIT = [
    figure("gemm", 6.64e14),
    figure("memory", 2.96e12),
    figure("host_to_device", 5.5e10),
    figure("all_reduce", 1.1e9),
]


@pytest.fixture(name="node")
def _node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    state = tmp_path / "gpus"
    monkeypatch.setenv("NVML_STUB_STATE", str(state))
    return FakeNode(state, [h100()])


@pytest.fixture(name="measured")
def _measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    figures = list(FIT)
    monkeypatch.setattr(
        gpu_fitness, "measure_node", lambda *_, **__: {"torch": "2", "figures": figures}
    )
    return figures


def examine(nvml_library: Path, *options: str) -> tuple[int, str]:
    arguments = ["--gpu", "--nvml-library", str(nvml_library), *options]
    result = CliRunner().invoke(doctor, arguments, standalone_mode=False)
    if isinstance(result.exception, Exception):
        raise result.exception
    return int(result.return_value or 0), result.output


def checks_of(nvml_library: Path, *options: str) -> dict[str, dict[str, str]]:
    document = json.loads(examine(nvml_library, "--json", *options)[1])
    return {check["name"]: check for check in document["checks"]}


def test_figures_stand_in_peoples_units_beside_what_is_published(
    node: FakeNode, measured: list[dict[str, Any]], nvml_library: Path
) -> None:
    assert node.gpus
    assert measured
    checks = checks_of(nvml_library, "--load")
    product = checks["bf16 product"]
    assert product["measured"] == "664 TFLOP/s"
    assert product["compared"] == "989 TFLOP/s, published peak; 67%"
    assert checks["memory, read and write"]["compared"].startswith("3.35 TB/s")
    assert checks["all reduce"]["compared"] == "nothing published"
    assert {check["verdict"] for check in checks.values()} <= {"ok", "degraded"}


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    ("change", "name", "verdict"),
    [
        (("nvmlDeviceGetRemappedRows.pending", 1), "remapped rows", "degraded"),
        (("nvmlDeviceGetRemappedRows.failed", 1), "remapped rows", "failed"),
        (("nvmlDeviceGetCurrPcieLinkWidth", 4), "PCIe link", "degraded"),
        (("nvmlSystemGetDriverVersion", "470.82.01"), "driver", "degraded"),
    ],
)
def test_what_is_wrong_with_a_gpu_is_one_line_and_the_exit_status(
    node: FakeNode, nvml_library: Path, change: tuple[str, Any], name: str, verdict: str
) -> None:
    node.set(-1 if "System" in change[0] else 0, *change)
    assert checks_of(nvml_library)[name]["verdict"] == verdict
    assert examine(nvml_library)[0] == checkup.STATUS[verdict]


def test_a_slow_product_is_degraded(
    node: FakeNode, measured: list[dict[str, Any]], nvml_library: Path
) -> None:
    assert node.gpus
    measured[0] = figure("gemm", 3e14)
    assert checks_of(nvml_library, "--load")["bf16 product"]["verdict"] == "degraded"


def test_a_driver_that_does_not_return_is_a_line_and_2(
    monkeypatch: pytest.MonkeyPatch, nvml_library: Path
) -> None:
    monkeypatch.setattr(gpu_fitness, "_CALL_SECONDS", 0.05)
    monkeypatch.setattr(gpu_fitness, "Driver", lambda _: time.sleep(1))
    status, text = examine(nvml_library, "--json")
    assert status == 2
    assert "has not returned in 0.05 s" in text


def test_no_driver_is_a_sentence(tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_text("no library")
    with pytest.raises(Exception, match="no GPU driver answers") as raised:
        examine(library)
    assert getattr(raised.value, "exit_code", None) in {1, 2}


def test_a_gpu_that_others_use_is_loaded_by_load_only(
    monkeypatch: pytest.MonkeyPatch, node: FakeNode, nvml_library: Path
) -> None:
    calls: list[tuple[object, ...]] = []

    def measure(*arguments: object, **_: object) -> dict[str, Any]:
        calls.append(arguments)
        return {"torch": "2", "figures": FIT}

    monkeypatch.setattr(gpu_fitness, "measure_node", measure)
    monkeypatch.setattr(gpu_fitness, "_pids", lambda _: [4711])
    assert node.gpus
    checks = checks_of(nvml_library)
    assert "4711" in checks["other processes"]["measured"]
    assert "--load" in checks["load"]["compared"]
    assert calls == []
    checks_of(nvml_library, "--load", "--minutes", "0.5")
    assert calls[0][1:] == ("--gpu", "0", "--load", "30s")


@pytest.mark.parametrize(
    ("options", "named"),
    [(["--load"], "--gpu"), (["--minutes", "2"], "--gpu"), (["--gpu", "--preflight"], "alone")],
)
def test_options_that_do_not_go_together_are_refused(options: list[str], named: str) -> None:
    result = CliRunner().invoke(doctor, options)
    assert result.exit_code == 2
    assert named in result.output
