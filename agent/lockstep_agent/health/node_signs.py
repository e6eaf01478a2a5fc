"""Faults of the node as a whole and of the ports that an operator expects."""

from collections.abc import Iterable, Iterator

from lockstep_agent.health.expected import ExpectedPort
from lockstep_agent.health.facts import Facts
from lockstep_agent.health.signs import Sign
from lockstep_catalogue import agent, fabric, gpu
from lockstep_catalogue.incidents import DEGRADED, EXPECTED_PORT_HEALTH, FAILED, NODE_HEALTH

_UP = (fabric.PORT_UP, fabric.NET_UP)
_RATE = (fabric.PORT_RATE, fabric.NET_SPEED)
_PRESENT = (fabric.PORT_INFO, *_UP, *_RATE)


def node_signs(facts: Facts, expected_gpus: int | None, most_seen: float) -> Iterator[Sign]:
    """Every fault of the node itself; none of its GPUs while the driver is released.

    Args:
        facts: of one tick.
        expected_gpus: number that there must be; None takes what was seen and what is on the bus.
        most_seen: most GPUs that the driver has reported since the start.
    """
    # A driver that hangs reports no GPUs: a verdict on their number would be a second, wrong one.
    if facts.is_set(agent.LANE_STALLED, "driver"):
        yield Sign(NODE_HEALTH, (), FAILED, "driver_hung")
        return
    if facts.is_set(agent.DRIVER_RELEASED):
        return
    by_driver = facts.value(gpu.GPU_COUNT, "nvml")
    on_bus = facts.value(gpu.GPU_COUNT, "pci") or 0
    required = expected_gpus if expected_gpus is not None else max(most_seen, on_bus)
    if by_driver is None and expected_gpus is None and not most_seen:
        if on_bus:
            yield Sign(NODE_HEALTH, (), DEGRADED, "driver_absent")
        return
    if (by_driver or 0) < required:
        yield Sign(NODE_HEALTH, (), FAILED, "gpu_count_short")


def part_signs(parts: Iterable[tuple[str, str]]) -> Iterator[Sign]:
    """The node is as bad as its worst GPU and its worst port.

    Args:
        parts: kind, ``gpu`` or ``port``, and verdict of each.
    """
    for kind, verdict in sorted(set(parts)):
        if verdict in {DEGRADED, FAILED}:
            yield Sign(NODE_HEALTH, (), verdict, f"{kind}_{verdict}")


def port_signs(facts: Facts, expected: Iterable[ExpectedPort]) -> Iterator[Sign]:
    """Every fault of expected ports, by device or interface; of several ports the worst counts."""
    for port in expected:
        part = (port.device,)
        values = {
            metric: [value for labels, value in facts.of(metric).items() if labels[:1] == part]
            for metric in _PRESENT
        }
        up = [value for metric in _UP for value in values[metric]]
        rates = [value for metric in _RATE for value in values[metric]]
        if not any(values.values()):
            yield Sign(EXPECTED_PORT_HEALTH, part, FAILED, "missing")
        if not all(up):
            yield Sign(EXPECTED_PORT_HEALTH, part, FAILED, "not_up")
        if port.rate is not None and rates and min(rates) < port.rate:
            yield Sign(EXPECTED_PORT_HEALTH, part, DEGRADED, "rate_below_expected")
