"""What is wrong with the node as a whole: GPUs missing, a driver that does not answer."""

from collections.abc import Iterable, Iterator

from lockstep_agent.health.facts import Facts
from lockstep_agent.health.signs import Sign
from lockstep_catalogue import agent, gpu
from lockstep_catalogue.incidents import DEGRADED, FAILED, NODE_HEALTH


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
