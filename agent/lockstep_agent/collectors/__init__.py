"""The collectors of the agent, listed in one place: those of the node, and those of each GPU."""

from collections.abc import Callable

from lockstep_agent.collector import Collector
from lockstep_agent.collectors.affinity import Affinity
from lockstep_agent.collectors.agent_info import AgentInfo
from lockstep_agent.collectors.bus import Bus
from lockstep_agent.collectors.ethernet import Ethernet
from lockstep_agent.collectors.gpu import Load
from lockstep_agent.collectors.gpu_activity import Activity, MigActivity
from lockstep_agent.collectors.gpu_events import GpuEvents
from lockstep_agent.collectors.gpu_fabric import GpuFabric
from lockstep_agent.collectors.gpu_faults import FaultPlaces, Faults, SlowFaults
from lockstep_agent.collectors.gpu_identity import Identity
from lockstep_agent.collectors.gpu_nvlink import NvlinkBytes, NvlinkQuality, Nvlinks
from lockstep_agent.collectors.gpu_pcie import PcieBytes, PcieErrors, PcieLimits, PcieLink
from lockstep_agent.collectors.gpu_power import Limits, Power
from lockstep_agent.collectors.gpu_processes import GpuProcesses
from lockstep_agent.collectors.gpu_throttle import Throttle, ThrottleSeconds
from lockstep_agent.collectors.gpu_window import Windows
from lockstep_agent.collectors.hangs import Hangs
from lockstep_agent.collectors.host import Host
from lockstep_agent.collectors.infiniband import Infiniband
from lockstep_agent.collectors.infiniband_errors import InfinibandErrors
from lockstep_agent.collectors.job_host import JobHost, running_ranks
from lockstep_agent.collectors.kernel_log import KernelLog
from lockstep_agent.collectors.net import Net
from lockstep_agent.collectors.pcie import Pcie
from lockstep_agent.collectors.port_health import PortHealth
from lockstep_agent.collectors.ranks import Ranks
from lockstep_agent.collectors.storage import Storage
from lockstep_agent.options import Options
from lockstep_agent.sources.nvml import Gpu
from lockstep_agent.sources.xid_event import XidEvent
from lockstep_agent.state_file import StateFile

_OF_THE_NODE: tuple[Callable[[Options], Collector], ...] = (
    lambda told: AgentInfo(told.cluster, told.node, told.procfs),
    lambda told: Ranks(told.root, told.node, told.procfs, told.linger_seconds),
    lambda told: Hangs(told.root, told.node, told.procfs, told.hang_seconds),
    lambda told: Bus(told.root, told.node),
    lambda told: Net(str(told.sysfs)),
    lambda told: Ethernet(str(told.sysfs)),
    lambda told: Infiniband(str(told.sysfs)),
    lambda told: InfinibandErrors(str(told.sysfs), detail=told.detail),
    lambda told: PortHealth(str(told.sysfs)),
    lambda told: Pcie(str(told.sysfs), detail=told.detail),
    lambda told: Affinity(str(told.sysfs)),
    lambda told: Host(str(told.procfs)),
    lambda told: JobHost(
        str(told.sysfs), str(told.procfs), lambda: running_ranks(told.root, told.procfs)
    ),
    lambda told: Storage(str(told.sysfs), str(told.procfs)),
)
# the first hears what a GPU that is lost by now complained of, the second tells whether it answers
_OF_A_GPU: tuple[Callable[[Gpu, float], Collector], ...] = (
    lambda gpu, _: GpuEvents(gpu),
    lambda gpu, _: Load(gpu),
    lambda gpu, _: Power(gpu),
    lambda gpu, _: Throttle(gpu),
    Windows,
    Activity,
    lambda gpu, _: NvlinkBytes(gpu),
    lambda gpu, _: PcieBytes(gpu),
    lambda gpu, _: ThrottleSeconds(gpu),
    lambda gpu, _: Faults(gpu),
    lambda gpu, _: Nvlinks(gpu),
    lambda gpu, _: PcieLink(gpu),
    lambda gpu, _: GpuFabric(gpu),
    lambda gpu, _: GpuProcesses(gpu),
    lambda gpu, _: MigActivity(gpu),
    lambda gpu, _: Identity(gpu),
    lambda gpu, _: Limits(gpu),
    lambda gpu, _: SlowFaults(gpu),
    lambda gpu, _: PcieLimits(gpu),
    lambda gpu, _: NvlinkQuality(gpu),
)
# counters by kind and place, for whose series a node of eight GPUs has no room by default
_OF_A_GPU_IN_DETAIL: tuple[Callable[[Gpu, float], Collector], ...] = (
    lambda gpu, _: FaultPlaces(gpu),
    lambda gpu, _: PcieErrors(gpu),
)


def node_collectors(
    options: Options, take_xids: Callable[[], list[XidEvent] | None]
) -> tuple[Collector, ...]:
    """What is read of the node; each runs in a lane of its own."""
    kernel_log = KernelLog(
        {"kernel": options.kmsg, "fabric_manager": options.fabric_manager_log},
        options.procfs / "sys" / "kernel" / "random" / "boot_id",
        options.sysfs,
        StateFile(options.state and options.state / "kernel-log.json"),
        take_xids=take_xids,
    )
    return (*(make(options) for make in _OF_THE_NODE), kernel_log)


def gpu_collectors(
    gpu: Gpu, window_seconds: float, *, detail: bool = False
) -> tuple[Collector, ...]:
    """What is read of one GPU, in the order in which its lane runs them.

    Args:
        gpu: the one that they read.
        window_seconds: over which lowest, mean and highest are told.
        detail: tells rare counters too.
    """
    makers = (*_OF_A_GPU, *_OF_A_GPU_IN_DETAIL) if detail else _OF_A_GPU
    return tuple(make(gpu, window_seconds) for make in makers)
