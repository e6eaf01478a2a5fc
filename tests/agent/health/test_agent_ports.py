"""Verdicts on ports, by facts and by captures of good and faulty nodes."""

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep_agent.collectors.ports.port_health import (
    PortFacts,
    PortHealth,
    PortVerdict,
    judge_port,
)
from lockstep_catalogue import fabric as metrics
from lockstep_cli.gameday.fake_node import Tree, unpack, write

from ..fake_tree import FIXTURES

HEALTHY = PortFacts(
    labels=("mlx5_0", "1"),
    kind="board infiniband",
    at_seconds=600,
    is_up=True,
    was_up=True,
    bytes_per_second=50e9,
    lanes=4,
    link_downs=0,
    link_errors=0,
    broken_connections=0,
    pcie_ratio=1.0,
)
FIRST = replace(HEALTHY, at_seconds=0)


def verdict(**changes: object) -> PortVerdict | None:
    now = replace(HEALTHY, **changes)  # type: ignore[arg-type]  # names and types are the fields'
    return judge_port([FIRST, now], expected_bytes_per_second=50e9, expected_lanes=4)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("ok", "none")),
        ({"is_up": False}, ("failed", "down")),
        ({"is_up": None}, ("ok", "none")),
        ({"link_downs": 3}, ("failed", "flapping")),
        ({"link_downs": 2}, ("ok", "none")),
        ({"broken_connections": 1}, ("degraded", "retries")),
        ({"bytes_per_second": 25e9}, ("degraded", "rate")),
        ({"bytes_per_second": 49.9e9}, ("ok", "none")),
        ({"lanes": 2}, ("degraded", "lanes")),
        ({"link_errors": 21}, ("degraded", "errors")),
        ({"link_errors": 20}, ("ok", "none")),
        ({"is_saturated": True}, ("degraded", "blind")),
        ({"pcie_ratio": 0.5}, ("degraded", "pcie")),
        ({"is_up": False, "is_saturated": True}, ("failed", "down")),
    ],
)
def test_the_worst_sign_decides(changes: dict[str, object], expected: tuple[str, str]) -> None:
    assert verdict(**changes) == PortVerdict(*expected)


def test_a_port_that_was_never_up_has_no_verdict() -> None:
    unused = replace(HEALTHY, is_up=False, was_up=False)
    assert judge_port([unused, unused]) is None


def test_a_counter_that_was_cleared_begins_anew() -> None:
    history = [replace(HEALTHY, link_downs=count) for count in (255, 255, 0, 1)]
    assert judge_port(history) == PortVerdict("ok", "none")


def verdicts(collector: PortHealth) -> dict[tuple[str, str], tuple[str, ...]]:
    return {
        (reading.labels[0], reading.labels[1]): reading.labels[2:]
        for reading in collector.collect()
        if reading.metric is metrics.PORT_HEALTH
    }


def capture(name: str, sysfs: Path) -> Path:
    unpack(FIXTURES / "node-health-gcm" / name, sysfs)
    for kind in ("infiniband", "net"):
        for device in sorted((sysfs / "bus" / "pci" / "devices").glob(f"*/{kind}/*")):
            write(sysfs / "class" / kind / device.name, f"-> {device}")
            if not (device / "device").exists():
                write(device / "device", f"-> {device.parents[1]}")
    return sysfs


def test_every_port_of_the_good_node_is_ok_and_of_the_slow_one_degraded(tmp_path: Path) -> None:
    good = verdicts(PortHealth(str(capture("learn_good.json", tmp_path / "good"))))
    slow = verdicts(PortHealth(str(capture("learn_ib_intf_bad_rate.json", tmp_path / "slow"))))
    assert len(good) == len(slow) == 8
    assert set(good.values()) == {("ok", "none")}
    assert set(slow.values()) == {("degraded", "rate")}


def test_ports_are_compared_with_ports_of_their_kind_and_with_their_past(tmp_path: Path) -> None:
    tree = Tree(tmp_path, gpus=0, infiniband=3, ethernet=1)
    collector = PortHealth(str(tmp_path))
    assert set(verdicts(collector).values()) == {("ok", "none")}
    write(tree.port("mlx5_0") / "state", "1: DOWN")
    write(tree.port("mlx5_1") / "rate", "200 Gb/sec (2X NDR)")
    write(tree.port("mlx5_2") / "hw_counters" / "req_transport_retries_exceeded", 1)
    write(tree.port("mlx5_3").parents[1] / "device" / "current_link_width", 8)
    assert verdicts(collector) == {
        ("mlx5_0", "1"): ("failed", "down"),
        ("mlx5_1", "1"): ("degraded", "rate"),
        ("mlx5_2", "1"): ("degraded", "retries"),
        ("mlx5_3", "1"): ("degraded", "pcie"),
    }


def test_a_port_that_goes_up_and_down_flaps(tmp_path: Path) -> None:
    tree = Tree(tmp_path, gpus=0, infiniband=1, ethernet=0)
    collector = PortHealth(str(tmp_path))
    for count in range(4):
        write(tree.port("mlx5_0") / "counters" / "link_downed", count)
        by_port = verdicts(collector)
    assert by_port == {("mlx5_0", "1"): ("failed", "flapping")}
