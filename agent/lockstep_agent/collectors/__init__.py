"""The collectors of the agent, listed in one place."""

from collections.abc import Callable
from functools import partial

from lockstep_agent.collector import Collector
from lockstep_agent.collectors.gpu import Gpus
from lockstep_agent.collectors.itself import Itself
from lockstep_agent.collectors.net import Net
from lockstep_agent.collectors.ranks import Ranks
from lockstep_agent.options import Options
from lockstep_agent.sources.nvml import Driver

_FACTORIES: tuple[Callable[[Options], Collector], ...] = (
    lambda told: Itself(told.cluster, told.node, told.procfs),
    lambda told: Ranks(told.root, told.node, told.procfs, told.linger_seconds),
    lambda told: Net(told.sysfs),
    lambda told: Gpus(partial(Driver, told.nvml_library)),
)


def build_collectors(options: Options) -> tuple[Collector, ...]:
    """Every collector of one agent, in the order in which they run."""
    return tuple(make(options) for make in _FACTORIES)
