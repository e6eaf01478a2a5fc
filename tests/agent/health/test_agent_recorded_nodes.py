"""Ports of recorded nodes, good and faulty, get the verdict in the name of their file."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from lockstep_agent.health.judge import Expectations, Judge, read_port, verdicts_in
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_catalogue.incidents import EXPECTED_PORT_HEALTH
from lockstep_cli.gameday.fake_node import unpack, write

from ..fake_tree import FIXTURES


def write_interfaces(name: str, sysfs: Path) -> Iterable[str]:
    """Writes the interfaces of a recorded node as files; yields the names of those with a link."""
    capture = json.loads((FIXTURES / "node-health-gcm" / f"{name}.json").read_text())
    for interface in capture["intf_status"]:
        folder = sysfs / "class" / "net" / interface["ifname"]
        folder.mkdir(parents=True)
        (folder / "operstate").write_text(interface["operstate"].lower() + "\n")
        if interface["link_type"] != "loopback":
            (folder / "device").mkdir()
        if "LOWER_UP" in interface["flags"] and interface["link_type"] == "ether":
            yield interface["ifname"]


def bad_ports(sysfs: Path, options: Options, ports: Iterable[str]) -> dict[str, list[str]]:
    """Verdict and reason of the expected ports that are not ok, by their names."""
    expected = Expectations(ports=tuple(map(read_port, ports)))
    runtime = CollectorRuntime(replace(options, sysfs=sysfs))
    readings = Sampler(runtime, 1, judge=Judge(expected)).sample().readings
    return {
        verdict.name: [verdict.verdict, verdict.reason]
        for verdict in verdicts_in(readings)
        if verdict.metric is EXPECTED_PORT_HEALTH and verdict.verdict != "ok"
    }


def test_the_interfaces_of_recorded_nodes_are_judged_as_their_names_say(
    tmp_path: Path, options: Options
) -> None:
    good = sorted(write_interfaces("eth_learn_good", tmp_path / "good"))
    list(write_interfaces("eth_learn_down_intf", tmp_path / "down"))
    cabled = [name for name in good if name.startswith("enp")]
    assert cabled == ["enp225s0f0", "enp97s0f0"]
    assert bad_ports(tmp_path / "good", options, cabled) == {}
    assert bad_ports(tmp_path / "down", options, cabled) == {"enp225s0f0": ["failed", "not_up"]}


def test_the_infiniband_ports_of_recorded_nodes_are_judged_as_their_names_say(
    tmp_path: Path, options: Options
) -> None:
    devices = [f"mlx5_{index}" for index in (0, 1, 2, 3, 6, 7, 8, 9)]
    expected = [f"{device}:200" for device in devices]
    for name in ("learn_good", "learn_ib_intf_bad_rate"):
        sysfs = unpack(FIXTURES / "node-health-gcm" / f"{name}.json", tmp_path / name)
        for adapter in sysfs.glob("bus/pci/devices/*/infiniband/*"):
            write(sysfs / "class" / "infiniband" / adapter.name, f"-> {adapter}")
    assert bad_ports(tmp_path / "learn_good", options, expected) == {}
    slow = bad_ports(tmp_path / "learn_ib_intf_bad_rate", options, expected)
    assert slow == {device: ["degraded", "rate_below_expected"] for device in devices}
