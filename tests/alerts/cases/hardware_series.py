"""Series of GPUs and drivers that fail, and of several nodes."""

from collections.abc import Callable, Iterable

from lockstep_catalogue import gpu, incidents

from .synthetic import Samples, Timing, sample_node

GPU = {"gpu": "3", "uuid": "GPU-3"}
BUS_ID = "0000:3b:00.0"


def holds_gpu(timing: Timing, node: str = "n1") -> Samples:
    owner = {**GPU, "pci_bus_id": BUS_ID, "mig_uuid": "", "job_id": "j1", "rank": "2"}
    return sample_node(gpu.GPU_OWNER_INFO, timing.steady(1), node, **owner)


def gpu_verdict(timing: Timing, verdict: str, reason: str, node: str = "n1") -> Samples:
    labels = {**GPU, "verdict": verdict, "gpu_reason": reason}
    return sample_node(incidents.GPU_HEALTH, timing.appears(), node, **labels)


def driver_hangs(timing: Timing, node: str = "n1") -> Samples:
    verdict = {"verdict": "failed", "node_reason": "driver_hung"}
    return sample_node(incidents.NODE_HEALTH, timing.appears(), node, **verdict)


def on_nodes(count: int, of_node: Callable[[str], Iterable[Samples]]) -> list[Samples]:
    """Series of a case on so many nodes."""
    return [each for number in range(count) for each in of_node(f"n{number + 1}")]
