"""The collectors of the agent, listed in one place: those of the node, and those of each GPU."""

from collections.abc import Callable, Collection

from lockstep_agent.collector import Collector
from lockstep_agent.collectors.gpu.activity import GpuActivity, GpuWindows, MigActivity
from lockstep_agent.collectors.gpu.faults import GpuEvents, fault_locations, faults, lifetime_faults
from lockstep_agent.collectors.gpu.links import (
    Nvlinks,
    fabric,
    nvlink_bytes,
    nvlink_quality,
    pcie_bytes,
    pcie_errors,
    pcie_limits,
    pcie_link,
)
from lockstep_agent.collectors.gpu.power import limits, power, throttle_reasons, throttle_seconds
from lockstep_agent.collectors.gpu.state import identity, load, processes
from lockstep_agent.collectors.jobs.bus import Bus
from lockstep_agent.collectors.jobs.hangs import Hangs
from lockstep_agent.collectors.jobs.job_host import JobHost
from lockstep_agent.collectors.jobs.newest_steps import NewestSteps
from lockstep_agent.collectors.jobs.ranks import Ranks
from lockstep_agent.collectors.jobs.watched import Watched
from lockstep_agent.collectors.node.host import AgentInfo, Host
from lockstep_agent.collectors.node.kernel_log import KernelLog
from lockstep_agent.collectors.node.pcie import Affinity, Pcie
from lockstep_agent.collectors.node.storage import Storage
from lockstep_agent.collectors.ports.ethernet import Ethernet, Net
from lockstep_agent.collectors.ports.infiniband import Infiniband, InfinibandErrors
from lockstep_agent.collectors.ports.port_health import PortHealth
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.jobs.watched_jobs import WatchedJobs
from lockstep_agent.options import Options
from lockstep_agent.recent_events import RecentEvents
from lockstep_agent.sources.nvml import Gpu
from lockstep_agent.sources.nvml.device import XidEvent
from lockstep_agent.state_file import StateFile
from lockstep_records.files.jobs import plain_roots

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


def node_collectors(
    options: Options,
    pages: PageStore,
    watched: WatchedJobs,
    *,
    take_xids: Callable[[], list[XidEvent] | None],
    incidents: RecentEvents,
    hangs: RecentEvents,
    adapters: dict[str, tuple[str, ...]],
) -> tuple[Collector, ...]:
    """The collectors of the node; each runs in a worker of its own."""
    sysfs, procfs, node = str(options.sysfs), str(options.procfs), options.node
    root = next(iter(plain_roots(options.root)), None)
    return (
        AgentInfo(options.cluster, node, options.procfs),
        Ranks(pages, node, options.linger),
        Hangs(pages, node, options.procfs, options.hang_timeouts, recent=hangs, watched=watched),
        *(Watched(watch, watched, node, root) for watch in watched.watches),
        Bus(pages, node),
        NewestSteps(pages, node),
        Net(sysfs),
        Ethernet(sysfs),
        Infiniband(sysfs),
        InfinibandErrors(sysfs, detail=options.detail),
        PortHealth(sysfs),
        Pcie(sysfs, detail=options.detail),
        Affinity(sysfs, adapters),
        Host(procfs),
        JobHost(sysfs, procfs, pages),
        Storage(sysfs, procfs),
        _kernel_log(options, take_xids, incidents),
    )


def _kernel_log(
    options: Options, take_xids: Callable[[], list[XidEvent] | None], incidents: RecentEvents
) -> KernelLog:
    return KernelLog(
        {"kernel": options.kmsg, "fabric_manager": options.fabric_manager_log},
        options.procfs / "sys" / "kernel" / "random" / "boot_id",
        options.sysfs,
        StateFile(options.state and options.state / "kernel-log.json"),
        take_xids=take_xids,
        recent=incidents,
    )


def gpu_collectors(
    gpu: Gpu, window_seconds: float, *, detail: bool = False, without: Collection[str] = ()
) -> tuple[Collector, ...]:
    """The collectors of one GPU but for some, in the order in which its worker runs them."""
    windows = (GpuWindows(gpu, window_seconds), GpuActivity(gpu))
    builders = (*_GPU_COLLECTORS, *(_GPU_DETAIL_COLLECTORS if detail else ()))
    collectors = (*(build(gpu) for build in builders), *windows)
    return tuple(each for each in collectors if each.name not in without)
