"""``lockstep doctor`` on a node: what it prints, how it ends, what it compares."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from lockstep_agent.doctor import checkup
from lockstep_agent.doctor.checkup import compare, parse_figures, read_fleet
from lockstep_agent.doctor.command import doctor as command
from lockstep_agent.options import Options
from lockstep_cli.gameday.fake_node import FakeNode, h100
from lockstep_records.files.node_figure import Figure

from ..in_process import refused_message
from ..running_agent import running_agent


def doctor(options: Options, *words: str) -> tuple[int, str]:
    """Exit status and stdout of the command, which writes nothing else."""
    node = ["--duration", "200ms", "--sysfs", str(options.sysfs)]
    node += ["--nvml-library", str(options.nvml_library)]
    done = CliRunner().invoke(
        command, [*node, *words], standalone_mode=False, catch_exceptions=False
    )
    assert done.stderr == ""
    return int(done.return_value), done.stdout


@pytest.fixture(name="options")
def _options(options: Options, tmp_path: Path) -> Options:
    """A node with GPUs and no ports, of which nothing is expected."""
    sysfs = tmp_path / "sys"
    sysfs.mkdir()
    return replace(options, sysfs=sysfs, expect_gpus=None, expect_port=())


@pytest.fixture(name="gpus")
def _gpus(node: FakeNode) -> FakeNode:
    return FakeNode(node.path, [h100(), h100()])


def figure(value: float, probe: str = "gemm", device: str = "H100") -> dict[str, object]:
    return {
        "probe": probe,
        "device": device,
        "index": 0,
        "value": value,
        "unit": "flops_per_second",
    }


def test_the_exit_status_is_0_when_all_is_well_1_when_degraded_2_when_failed(
    options: Options, gpus: FakeNode
) -> None:
    status, text = doctor(options)
    assert (status, "gpu 0" in text) == (0, True)
    gpus.set(1, "nvmlDeviceGetRemappedRows.pending", 1)
    for key in ("corrected", "uncorrected", "failed"):
        gpus.set(1, f"nvmlDeviceGetRemappedRows.{key}", 0)
    status, text = doctor(options)
    assert (status, "remap_pending" in text) == (1, True)
    status, text = doctor(options, "--expect-gpus", "8", "--json")
    assert status == 2
    health = json.loads(text)
    assert health["verdict"] == "failed"
    assert sorted(health["reasons"]) == ["gpu_count_short", "gpu_degraded"]
    assert [part["reasons"] for part in health["parts"]][:2] == [[], ["remap_pending"]]


@pytest.mark.server
def test_a_running_agent_is_asked_for_what_it_has_seen(options: Options, gpus: FakeNode) -> None:
    gpus.set(0, "nvmlDeviceGetRemappedRows.failed", 1)
    for key in ("corrected", "uncorrected", "pending"):
        gpus.set(0, f"nvmlDeviceGetRemappedRows.{key}", 0)
    with running_agent(options) as (_, url):
        status, text = doctor(options, "--url", url)
    assert (status, "remap_failed" in text, "node-7" in text) == (2, True, True)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--url", "http://127.0.0.1:1/"), "no verdicts of an agent there (Connection refused"),
        (("--url", "file:///etc/hosts"), "is not an address"),
        (("--fleet", __file__), "is compared by --preflight only"),
        (("--preflight", "--fleet", __file__), "line 1: no JSON"),
        (("--expect-port", "eth0:x"), "is not DEVICE or DEVICE:GIGABITS"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_status_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    named: str,
) -> None:
    message = refused_message(monkeypatch, capsys, "doctor", *words)
    assert named in message.replace("[Errno 111] ", "")


def test_a_figure_is_slow_below_its_share_of_the_median_of_its_own_kind(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.jsonl"
    lines = [{"preflight": {"figures": [figure(value)]}} for value in (90, 100, 110, 400)]
    lines.append({"preflight": {"figures": [figure(5000, device="B200")]}})
    fleet.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    own = parse_figures({"figures": [figure(94), figure(95), figure(1, probe="memory")]})
    comparisons = list(compare(own, read_fleet(fleet), 0.9))
    assert [each.median for each in comparisons] == [105, 105, None]
    assert [each.too_slow for each in comparisons] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "is empty"),
        ("{}", "line 1: it holds no figures"),
        ('\n{"figures": [{"probe": 1}]}', "line 2: it holds no figures"),
        (json.dumps({"figures": [figure(float("nan"))]}), "value nan of probe 'gemm'"),
        (json.dumps({"figures": [figure(1, device=3)]}), "'gemm' has a name"),  # type: ignore[arg-type]  # on purpose
        ("[" * 100_000, "line 1: no JSON"),
    ],
)
def test_what_is_no_fleet_is_refused_with_its_line(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "fleet.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"fleet\.jsonl") as raised:
        read_fleet(path)
    assert named in str(raised.value)


def test_a_node_slower_than_its_fleet_ends_with_1(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: Options,
    gpus: FakeNode,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert gpus.gpus
    measured = {"torch": "2", "figures": [figure(80)]}
    monkeypatch.setattr(checkup, "measure_node", lambda _: measured)
    fleet = tmp_path / "fleet.jsonl"
    fleet.write_text(json.dumps({"figures": [figure(100)]}))
    for ratio, status in ((0.9, 1), (0.7, 0)):
        found = checkup.check_up(
            None, 0.2, options, measures=True, fleet=fleet, slower_than_ratio=ratio, output=None
        )
        assert found == status
        assert ("too slow" in capsys.readouterr().out) == bool(status)


@pytest.mark.distributed
def test_preflight_measures_products_memory_and_all_reduce(options: Options) -> None:
    status, text = doctor(options, "--preflight", "--json")
    assert status == 0
    figures = parse_figures(json.loads(text))
    assert [each.probe for each in figures] == ["gemm", "memory", "all_reduce"]
    assert all(isinstance(each, Figure) and each.value > 1e6 for each in figures)


def test_preflight_without_torch_judges_the_node_and_says_what_it_skipped(
    options: Options, gpus: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpus.path
    absent = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    (tmp_path / "torch.py").write_text(absent, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    status, text = doctor(options, "--preflight")
    assert status == 0
    assert "were not measured: torch is not installed here" in " ".join(text.split())
    document = json.loads(doctor(options, "--preflight", "--json")[1])
    assert document["preflight"]["figures"] == []
    assert "skipped" in document["preflight"]
