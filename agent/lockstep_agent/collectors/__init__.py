"""The collectors of the agent, listed in one place: those of the node, and those of each GPU."""

from collections.abc import Callable
from dataclasses import dataclass

from lockstep_agent.collector import Collector
from lockstep_agent.collectors.gpu.activity import GpuActivity, MigActivity
from lockstep_agent.collectors.gpu.events import GpuEvents
from lockstep_agent.collectors.gpu.fabric import fabric
from lockstep_agent.collectors.gpu.faults import fault_locations, faults, lifetime_faults
from lockstep_agent.collectors.gpu.identity import identity
from lockstep_agent.collectors.gpu.load import load
from lockstep_agent.collectors.gpu.nvlink import Nvlinks, nvlink_bytes, nvlink_quality
from lockstep_agent.collectors.gpu.pcie import pcie_bytes, pcie_errors, pcie_limits, pcie_link
from lockstep_agent.collectors.gpu.power import limits, power
from lockstep_agent.collectors.gpu.processes import processes
from lockstep_agent.collectors.gpu.throttle import throttle_reasons, throttle_seconds
from lockstep_agent.collectors.gpu.window import GpuWindows
from lockstep_agent.collectors.jobs.bus import Bus
from lockstep_agent.collectors.jobs.hangs import Hangs
from lockstep_agent.collectors.jobs.job_host import JobHost
from lockstep_agent.collectors.jobs.loads import Loads
from lockstep_agent.collectors.jobs.ranks import Ranks
from lockstep_agent.collectors.node.affinity import Affinity
from lockstep_agent.collectors.node.agent_info import AgentInfo
from lockstep_agent.collectors.node.host import Host
from lockstep_agent.collectors.node.kernel_log import KernelLog
from lockstep_agent.collectors.node.pcie import Pcie
from lockstep_agent.collectors.node.storage import Storage
from lockstep_agent.collectors.ports.ethernet import Ethernet
from lockstep_agent.collectors.ports.infiniband import Infiniband
from lockstep_agent.collectors.ports.infiniband_errors import InfinibandErrors
from lockstep_agent.collectors.ports.net import Net
from lockstep_agent.collectors.ports.port_health import PortHealth
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.recent_events import RecentEvents
from lockstep_agent.settings.options import Options
from lockstep_agent.sources.nvml import Gpu
from lockstep_agent.sources.xid_event import XidEvent
from lockstep_agent.state_file import StateFile
from lockstep_records.progress.hangs import HangTimeouts


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSources:
    """What the collectors of the node are built from.

    Attributes:
        options: of the agent.
        pages: the rank pages of the node.
        take_xids: Xid events of the driver since the last call; None where it has none.
        incidents: where the kernel log publishes its incidents.
        hangs: where hangs of jobs are published.
        adapters: names of the adapters nearest to each GPU, by its PCI address, once known.
    """

    options: Options
    pages: PageStore
    take_xids: Callable[[], list[XidEvent] | None]
    incidents: RecentEvents
    hangs: RecentEvents
    adapters: dict[str, tuple[str, ...]]


def _agent_info(node: NodeSources) -> AgentInfo:
    options = node.options
    return AgentInfo(options.cluster, options.node, options.procfs)


def _ranks(node: NodeSources) -> Ranks:
    return Ranks(node.pages, node.options.node, node.options.linger)


def _hangs(node: NodeSources) -> Hangs:
    return Hangs(
        node.pages,
        node.options.node,
        node.options.procfs,
        HangTimeouts(
            step_seconds=node.options.hang_timeout_seconds,
            pause_seconds=node.options.pause_timeout_seconds,
        ),
        recent=node.hangs,
    )


def _job_host(node: NodeSources) -> JobHost:
    options = node.options
    return JobHost(str(options.sysfs), str(options.procfs), node.pages)


def _kernel_log(node: NodeSources) -> KernelLog:
    options = node.options
    return KernelLog(
        {"kernel": options.kmsg, "fabric_manager": options.fabric_manager_log},
        options.procfs / "sys" / "kernel" / "random" / "boot_id",
        options.sysfs,
        StateFile(options.state and options.state / "kernel-log.json"),
        take_xids=node.take_xids,
        recent=node.incidents,
    )


_NODE_COLLECTORS: tuple[Callable[[NodeSources], Collector], ...] = (
    _agent_info,
    _ranks,
    _hangs,
    lambda node: Bus(node.pages, node.options.node),
    lambda node: Loads(node.pages, node.options.node),
    lambda node: Net(str(node.options.sysfs)),
    lambda node: Ethernet(str(node.options.sysfs)),
    lambda node: Infiniband(str(node.options.sysfs)),
    lambda node: InfinibandErrors(str(node.options.sysfs), detail=node.options.detail),
    lambda node: PortHealth(str(node.options.sysfs)),
    lambda node: Pcie(str(node.options.sysfs), detail=node.options.detail),
    lambda node: Affinity(str(node.options.sysfs), node.adapters),
    lambda node: Host(str(node.options.procfs)),
    _job_host,
    lambda node: Storage(str(node.options.sysfs), str(node.options.procfs)),
    _kernel_log,
)
# The events come first: a GPU that is lost by now may still report why. Load comes next: it finds
# out whether the GPU answers at all.
_GPU_COLLECTORS: tuple[Callable[[Gpu], Collector], ...] = (
    GpuEvents,
    load,
    power,
    throttle_reasons,
    nvlink_bytes,
    pcie_bytes,
    throttle_seconds,
    faults,
    Nvlinks,
    pcie_link,
    fabric,
    processes,
    MigActivity,
    identity,
    limits,
    lifetime_faults,
    pcie_limits,
    nvlink_quality,
)
# Counters by kind and place: their series would take a node of eight GPUs over its 2,000 series.
_GPU_DETAIL_COLLECTORS = (fault_locations, pcie_errors)


def node_collectors(node: NodeSources) -> tuple[Collector, ...]:
    """The collectors of the node; each runs in a worker of its own."""
    return tuple(build(node) for build in _NODE_COLLECTORS)


def gpu_collectors(
    gpu: Gpu, window_seconds: float, *, detail: bool = False
) -> tuple[Collector, ...]:
    """The collectors of one GPU, in the order in which its worker runs them.

    Args:
        gpu: the GPU that they read.
        window_seconds: window for minimum, mean and maximum.
        detail: includes rare counters.
    """
    windows = (GpuWindows(gpu, window_seconds), GpuActivity(gpu, window_seconds))
    builders = (*_GPU_COLLECTORS, *(_GPU_DETAIL_COLLECTORS if detail else ()))
    return (*(build(gpu) for build in builders), *windows)
