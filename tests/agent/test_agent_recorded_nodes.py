"""Ports of recorded nodes, good and faulty, get the verdict that their file's name tells."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from lockstep_agent.health import Expectations, Judge
from lockstep_agent.health.expected import read_port
from lockstep_agent.health.parts import verdicts_in
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_catalogue.verdicts import (
    EXPECTED_PORT_HEALTH,
)

from .conftest import FIXTURES
from .fake_tree import unpack, write


def interfaces(name: str, sysfs: Path) -> Iterable[str]:
    """The interfaces of a recorded node as files; the names of those that had a link."""
    told = json.loads((FIXTURES / "node-health-gcm" / f"{name}.json").read_text())
    for one in told["intf_status"]:
        folder = sysfs / "class" / "net" / one["ifname"]
        folder.mkdir(parents=True)
        (folder / "operstate").write_text(one["operstate"].lower() + "\n")
        if one["link_type"] != "loopback":
            (folder / "device").mkdir()
        if "LOWER_UP" in one["flags"] and one["link_type"] == "ether":
            yield one["ifname"]


def judged(sysfs: Path, options: Options, ports: Iterable[str]) -> dict[str, list[str]]:
    """What is wrong with the ports that are expected, by their names."""
    expected = Expectations(ports=tuple(map(read_port, ports)))
    runtime = CollectorRuntime(replace(options, sysfs=sysfs))
    told = Sampler(runtime, 1, judge=Judge(expected)).sample().readings
    ports_told = [one for one in verdicts_in(told) if one.metric is EXPECTED_PORT_HEALTH]
    return {one.name: [one.verdict, one.reason] for one in ports_told if one.verdict != "ok"}


def test_the_interfaces_of_recorded_nodes_are_judged_as_their_names_say(
    tmp_path: Path, options: Options
) -> None:
    good = sorted(interfaces("eth_learn_good", tmp_path / "good"))
    list(interfaces("eth_learn_down_intf", tmp_path / "down"))
    cabled = [name for name in good if name.startswith("enp")]
    assert cabled == ["enp225s0f0", "enp97s0f0"]
    assert judged(tmp_path / "good", options, cabled) == {}
    assert judged(tmp_path / "down", options, cabled) == {"enp225s0f0": ["failed", "not_up"]}


def test_the_infiniband_ports_of_recorded_nodes_are_judged_as_their_names_say(
    tmp_path: Path, options: Options
) -> None:
    devices = [f"mlx5_{index}" for index in (0, 1, 2, 3, 6, 7, 8, 9)]
    expected = [f"{device}:200" for device in devices]
    for name in ("learn_good", "learn_ib_intf_bad_rate"):
        sysfs = unpack(FIXTURES / "node-health-gcm" / f"{name}.json", tmp_path / name)
        for adapter in sysfs.glob("bus/pci/devices/*/infiniband/*"):
            write(sysfs / "class" / "infiniband" / adapter.name, f"-> {adapter}")
    assert judged(tmp_path / "learn_good", options, expected) == {}
    slow = judged(tmp_path / "learn_ib_intf_bad_rate", options, expected)
    assert slow == {device: ["degraded", "rate_below_expected"] for device in devices}
