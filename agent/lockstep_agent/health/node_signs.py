"""What is wrong with the node as a whole: GPUs missing, a driver that does not answer."""

from collections.abc import Iterable, Iterator

from lockstep_agent.health.facts import Facts
from lockstep_agent.health.signs import Sign
from lockstep_catalogue import gpu, health
from lockstep_catalogue.verdicts import DEGRADED, FAILED, NODE_HEALTH


def node_signs(facts: Facts, expected_gpus: int | None, most_seen: float) -> Iterator[Sign]:
    """Everything wrong with the node itself; nothing of its GPUs while the driver is let go of.

    Args:
        facts: of one tick.
        expected_gpus: how many there must be; None counts what was there and what is on the bus.
        most_seen: GPUs that the driver told since the start, at most.
    """
    if facts.is_set(health.LANE_STALLED, "driver"):
        yield Sign(NODE_HEALTH, (), FAILED, "driver_hung")
        return
    if facts.is_set(health.DRIVER_RELEASED):
        return
    told = facts.value(gpu.GPU_COUNT, "nvml")
    on_the_bus = facts.value(gpu.GPU_COUNT, "pci") or 0
    due = expected_gpus if expected_gpus is not None else max(most_seen, on_the_bus)
    if told is None and expected_gpus is None and not most_seen:
        if on_the_bus:
            yield Sign(NODE_HEALTH, (), DEGRADED, "driver_absent")
        return
    if (told or 0) < due:
        yield Sign(NODE_HEALTH, (), FAILED, "gpu_count_short")


def of_the_parts(parts: Iterable[tuple[str, str]]) -> Iterator[Sign]:
    """The node is as bad as its worst GPU and its worst port.

    Args:
        parts: kind, ``gpu`` or ``port``, and verdict of each.
    """
    for kind, verdict in sorted(set(parts)):
        if verdict in {DEGRADED, FAILED}:
            yield Sign(NODE_HEALTH, (), verdict, f"{kind}_{verdict}")
