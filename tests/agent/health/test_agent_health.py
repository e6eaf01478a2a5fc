"""Verdicts: a fault is reported with its reason, a normal state is not, and flicker is held."""

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from lockstep_agent.collector import Reading
from lockstep_agent.doctor.checkup import ADVICE
from lockstep_agent.health.judge import Expectations, Judge, Limits, read_port
from lockstep_agent.options import Options
from lockstep_catalogue import agent, fabric, gpu
from lockstep_catalogue.incidents import (
    EXPECTED_PORT_HEALTH,
    EXPECTED_REASON,
    GPU_HEALTH,
    GPU_REASON,
    NODE_HEALTH,
    NODE_REASON,
)
from lockstep_catalogue.labels import PORT_REASON
from lockstep_cli.gameday.fake_node import FakeNode, h100

from ..running_agent import running_agent
from ..values import Values

WITHOUT_HOLD = Limits(link_hold_seconds=0.0, throttle_hold_seconds=0.0)

UUIDS = ("GPU-a", "GPU-b")
PARTS = tuple((str(index), uuid) for index, uuid in enumerate(UUIDS))


def healthy() -> Values:
    """Two busy GPUs with everything at its best, and one network interface."""
    values: Values = {(gpu.GPU_COUNT, ("nvml",)): 2, (gpu.GPU_COUNT, ("pci",)): 2}
    for part in PARTS:
        values |= {
            (gpu.GPU_INFO, (*part, "H100", "hopper", "", "", "", "")): 1,
            (gpu.GPU_UP, part): 1,
            (gpu.GPU_STATE_INFO, (*part, "ok")): 1,
            (gpu.GPU_UTILIZATION, part): 0.97,
            (gpu.GPU_PCIE_GENERATION, part): 5,
            (gpu.GPU_PCIE_GENERATION_MAX, part): 5,
            (gpu.GPU_PCIE_WIDTH, part): 16,
            (gpu.GPU_PCIE_WIDTH_MAX, part): 16,
            (gpu.NVLINK_LINKS, (*part, "active")): 18,
            (gpu.NVLINK_LINKS, (*part, "inactive")): 0,
            (gpu.NVLINK_SPEED_MIN, part): 26.562e9,
            (gpu.NVLINK_FABRIC_STATE, (*part, "completed")): 1,
            (gpu.GPU_RECOVERY_ACTION, (*part, "none")): 1,
            (gpu.GPU_POWER_LIMIT, (*part, "enforced")): 700,
            (gpu.GPU_POWER_LIMIT, (*part, "default")): 700,
            (gpu.GPU_THROTTLE_ACTIVE, (*part, "sw_power_cap")): 1,
            (gpu.GPU_ECC_ERRORS, (*part, "corrected", "volatile")): 12,
            (gpu.GPU_ECC_ERRORS, (*part, "uncorrected", "aggregate")): 1,
        }
    return values | {(fabric.NET_UP, ("eth0",)): 1, (fabric.NET_SPEED, ("eth0",)): 25e9}


def readings(values: Values) -> list[Reading]:
    return [Reading(metric, labels, value) for (metric, labels), value in values.items()]


def verdicts(judge: Judge, values: Values, at_seconds: float = 0.0) -> dict[str, list[str]]:
    """Verdict and reason of each part that is not ok, by the part."""
    by_part: dict[str, list[str]] = {}
    for reading in judge.judge(readings(values), at_seconds):
        is_verdict = reading.metric in {GPU_HEALTH, EXPECTED_PORT_HEALTH, NODE_HEALTH}
        if is_verdict and reading.labels[-2] != "ok":
            part = reading.labels[0] if len(reading.labels) > 2 else "node"
            by_part.setdefault(part, []).append(" ".join(reading.labels[-2:]))
    return by_part


FIRST = PARTS[0]
NARROW = (gpu.GPU_PCIE_WIDTH, FIRST)
BROKEN: list[tuple[Values, str]] = [
    ({(gpu.GPU_REMAP_FAILED, FIRST): 1}, "failed remap_failed"),
    ({(gpu.GPU_REMAP_PENDING, FIRST): 1}, "degraded remap_pending"),
    ({(gpu.GPU_RETIRED_PENDING, FIRST): 1}, "degraded retirement_pending"),
    ({(gpu.GPU_SRAM_THRESHOLD_EXCEEDED, FIRST): 1}, "failed sram_threshold"),
    ({(gpu.GPU_ECC_ERRORS, (*FIRST, "uncorrected", "volatile")): 1}, "degraded uncorrected_ecc"),
    ({(gpu.GPU_RECOVERY_ACTION, (*FIRST, "gpu_reset")): 1}, "failed recovery_action"),
    ({(gpu.GPU_RECOVERY_ACTION, (*FIRST, "drain_p2p")): 1}, "degraded recovery_action"),
    ({(gpu.GPU_PCIE_GENERATION, FIRST): 3}, "degraded pcie_below_max"),
    ({(gpu.GPU_PCIE_WIDTH, FIRST): 8}, "degraded pcie_below_max"),
    ({(gpu.NVLINK_LINKS, (*FIRST, "active")): 17}, "degraded nvlink_down"),
    ({(gpu.NVLINK_LINKS, (*FIRST, "active")): 0}, "degraded nvlink_down"),
    ({(gpu.NVLINK_SPEED_MIN, FIRST): 20e9}, "degraded nvlink_slow"),
    ({(gpu.NVLINK_FABRIC_STATE, (*FIRST, "failed")): 1}, "failed fabric_failed"),
    ({(gpu.NVLINK_FABRIC_UNHEALTHY, (*FIRST, "route_unhealthy")): 1}, "degraded fabric_unhealthy"),
    ({(gpu.GPU_THROTTLE_ACTIVE, (*FIRST, "hw_thermal")): 1}, "degraded thermal"),
    ({(gpu.GPU_THROTTLE_ACTIVE, (*FIRST, "sw_thermal")): 1}, "degraded thermal"),
    ({(gpu.GPU_THROTTLE_ACTIVE, (*FIRST, "hw_power_brake")): 1}, "degraded power_capped"),
    ({(gpu.GPU_POWER_LIMIT, (*FIRST, "enforced")): 400}, "degraded power_capped"),
    ({(gpu.GPU_THROTTLE_ACTIVE, (*FIRST, "hw_slowdown")): 1}, "degraded slowdown"),
    ({(gpu.GPU_STATE_INFO, (*FIRST, "hung")): 1}, "failed hung"),
    ({(gpu.GPU_STATE_INFO, (*FIRST, "lost")): 1}, "failed lost"),
]


def test_a_node_is_ok_at_its_power_limit_with_corrected_and_old_errors() -> None:
    judge = Judge(limits=WITHOUT_HOLD)
    assert verdicts(judge, healthy()) == {}
    verdict_readings = judge.judge(readings(healthy()), 1)
    assert [reading.labels for reading in verdict_readings] == [
        *((*part, "ok", "none") for part in PARTS),
        ("ok", "none"),
    ]


@pytest.mark.parametrize(("fault", "verdict"), BROKEN, ids=[reason for _, reason in BROKEN])
def test_a_fault_of_a_gpu_has_a_reason_and_its_node_is_as_bad(fault: Values, verdict: str) -> None:
    by_part = verdicts(Judge(limits=WITHOUT_HOLD), healthy() | fault)
    worst = verdict.split(maxsplit=1)[0]
    assert by_part == {"0": [verdict], "node": [f"{worst} gpu_{worst}"]}


def test_an_idle_gpu_may_let_its_pcie_link_sleep() -> None:
    asleep = {(gpu.GPU_PCIE_GENERATION, FIRST): 1, (gpu.GPU_UTILIZATION, FIRST): 0.02}
    assert verdicts(Judge(limits=WITHOUT_HOLD), healthy() | asleep) == {}


@pytest.mark.parametrize(
    ("fault", "seconds", "reason"),
    [
        ({NARROW: 8, (gpu.GPU_UTILIZATION, FIRST): 0.5}, 30, "pcie_below_max"),
        ({NARROW: 8, (gpu.GPU_UTILIZATION, FIRST): 0.49}, None, ""),
        ({(gpu.GPU_THROTTLE_ACTIVE, (*FIRST, "hw_thermal")): 1}, 60, "thermal"),
    ],
)
def test_by_default_a_sign_counts_from_the_load_and_the_time_that_the_docs_tell(
    fault: Values, seconds: float | None, reason: str
) -> None:
    judge = Judge()
    since = [at for at in range(100) if "0" in verdicts(judge, healthy() | fault, float(at))]
    assert since[:1] == ([] if seconds is None else [seconds])
    if seconds is not None:
        assert verdicts(judge, healthy() | fault, 100.0)["0"] == [f"degraded {reason}"]


def test_links_that_no_gpu_of_the_node_has_are_not_missed() -> None:
    bridged: Values = {(gpu.NVLINK_LINKS, (*part, "active")): 4 for part in PARTS}
    bridged |= {(gpu.NVLINK_LINKS, (*part, "inactive")): 14 for part in PARTS}
    judge = Judge(limits=WITHOUT_HOLD)
    assert verdicts(judge, healthy() | bridged) == {}
    assert verdicts(judge, healthy()) == {}
    assert set(verdicts(judge, healthy() | bridged)) == {"0", "1", "node"}  # they were there


def test_a_slow_link_is_reported_once_it_lasts_until_it_has_been_well_for_as_long() -> None:
    judge = Judge(limits=Limits(link_hold_seconds=30))
    slow = healthy() | {(gpu.GPU_PCIE_WIDTH, FIRST): 8}
    is_degraded = [
        "0" in verdicts(judge, values, at)
        for values, at in (
            (slow, 0.0),
            (slow, 29.0),
            (healthy(), 30.0),
            (slow, 31.0),
            (slow, 60.9),
            (slow, 61.0),
            (healthy(), 62.0),
            (slow, 80.0),
            (healthy(), 109.0),
            (healthy(), 110.0),
        )
    ]
    assert is_degraded == [False] * 5 + [True] * 4 + [False]


def test_a_gpu_that_was_seen_is_missed_and_so_is_one_that_is_expected() -> None:
    judge = Judge()
    assert verdicts(judge, healthy()) == {}
    fewer = healthy() | {(gpu.GPU_COUNT, ("nvml",)): 1, (gpu.GPU_COUNT, ("pci",)): 1}
    assert verdicts(judge, fewer) == {"node": ["failed gpu_count_short"]}
    assert verdicts(Judge(), fewer) == {}
    must = Judge(Expectations(gpus=8))
    assert verdicts(must, healthy()) == {"node": ["failed gpu_count_short"]}
    assert Reading(gpu.GPU_COUNT, ("expected",), 8) in must.judge(readings(healthy()), 1)
    assert verdicts(must, {}) == {"node": ["failed gpu_count_short"]}


def test_a_driver_that_hangs_is_reported_and_a_released_one_is_not() -> None:
    judge = Judge()
    assert verdicts(judge, healthy()) == {}
    hung: Values = {(agent.WORKER_STALLED, ("driver",)): 1}
    assert verdicts(judge, hung) == {"node": ["failed driver_hung"]}
    assert verdicts(judge, {(agent.DRIVER_RELEASED, ()): 1}) == {}
    assert verdicts(Judge(), {(gpu.GPU_COUNT, ("pci",)): 2}) == {"node": ["degraded driver_absent"]}
    assert verdicts(Judge(), {}) == {}


def test_a_port_must_do_what_is_expected_of_it() -> None:
    def expecting(*ports: str) -> Judge:
        return Judge(Expectations(ports=tuple(map(read_port, ports))))

    failed, degraded = ["failed port_failed"], ["degraded port_degraded"]
    down = healthy() | {(fabric.NET_UP, ("eth0",)): 0}
    assert verdicts(Judge(), down) == {}  # the collector of ports judges those
    assert verdicts(expecting("eth0"), healthy()) == {}
    assert verdicts(expecting("eth0"), down) == {"eth0": ["failed not_up"], "node": failed}
    slow = {"eth0": ["degraded rate_below_expected"], "node": degraded}
    assert verdicts(expecting("eth0:400"), healthy()) == slow
    assert verdicts(expecting("eth0:200"), healthy()) == {}
    missing = verdicts(expecting("eth9"), healthy())
    assert missing == {"eth9": ["failed missing"], "node": failed}


def test_a_verdict_of_a_collector_counts_for_the_node() -> None:
    flapping = {(fabric.PORT_HEALTH, ("mlx5_0", "1", "degraded", "flapping")): 1}
    assert verdicts(Judge(), healthy() | flapping) == {"node": ["degraded port_degraded"]}


def test_every_reason_has_advice_and_every_advice_a_reason() -> None:
    own = {"none", "gpu_failed", "gpu_degraded", "port_failed", "port_degraded"}
    reasons = {
        *GPU_REASON.values,
        *EXPECTED_REASON.values,
        *PORT_REASON.values,
        *NODE_REASON.values,
    } - own
    assert reasons <= set(ADVICE)


@pytest.mark.parametrize("text", ["", "eth0:", "eth0:fast", "eth 0", "a/b", "eth0:1:2", "\x00"])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not DEVICE or DEVICE:GIGABITS"):
        read_port(text)


@pytest.mark.server
def test_the_agent_serves_its_verdicts_as_json_on_health(
    options: Options, node: FakeNode, tmp_path: Path
) -> None:
    FakeNode(node.path, [h100(), h100()])
    with running_agent(replace(options, sysfs=tmp_path, expect_gpus=None, expect_port=())) as (
        _,
        url,
    ):
        page = httpx.get(url.replace("/metrics", "/health")).json()
    assert (page["node"], page["verdict"], page["reasons"]) == ("node-7", "ok", [])
    kinds = [(part["kind"], part["name"], part["verdict"]) for part in page["parts"]]
    assert kinds[:2] == [("gpu", "0", "ok"), ("gpu", "1", "ok")]
