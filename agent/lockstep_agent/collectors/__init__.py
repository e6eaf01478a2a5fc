"""The collectors of the agent, listed in one place: those of the node, and those of each GPU."""

from collections.abc import Callable

from lockstep_agent.collector import Collector
from lockstep_agent.collectors.gpu import Load
from lockstep_agent.collectors.itself import Itself
from lockstep_agent.collectors.net import Net
from lockstep_agent.collectors.ranks import Ranks
from lockstep_agent.options import Options
from lockstep_agent.sources.nvml import Gpu

_OF_THE_NODE: tuple[Callable[[Options], Collector], ...] = (
    lambda told: Itself(told.cluster, told.node, told.procfs),
    lambda told: Ranks(told.root, told.node, told.procfs, told.linger_seconds),
    lambda told: Net(told.sysfs),
)
_OF_A_GPU: tuple[Callable[[Gpu], Collector], ...] = (Load,)


def node_collectors(options: Options) -> tuple[Collector, ...]:
    """What is read of the node; each runs in a lane of its own."""
    return tuple(make(options) for make in _OF_THE_NODE)


def gpu_collectors(gpu: Gpu, window_seconds: float) -> tuple[Collector, ...]:
    """What is read of one GPU, in the order in which its lane runs them."""
    return tuple(make(gpu) for make in _OF_A_GPU)
