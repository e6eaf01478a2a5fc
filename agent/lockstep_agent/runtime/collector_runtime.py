"""Every worker of one agent: one for each collector of the node, one for the driver, one a GPU."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

from lockstep_agent.collector import Collector, Reading, Tier
from lockstep_agent.collectors import gpu_collectors, node_collectors
from lockstep_agent.collectors.gpu.allocation import GpuAllocation, GpuInUse
from lockstep_agent.collectors.gpu.dcgm import FIELDS, DcgmProfiling
from lockstep_agent.collectors.gpu.dcgm_exporter import DcgmExporter
from lockstep_agent.collectors.gpu.state import absent_gpu
from lockstep_agent.delivery.archive import Archive
from lockstep_agent.delivery.node_events import NodeEvents
from lockstep_agent.delivery.sender import Delivery, EventSource
from lockstep_agent.jobs.inspector_watch import InspectorWatch
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.jobs.ras_watch import RasWatch
from lockstep_agent.jobs.unreported import UnreportedJobs
from lockstep_agent.jobs.watched_jobs import WatchedJobs
from lockstep_agent.options import Options
from lockstep_agent.recent_events import RecentEvents, join_json_lists
from lockstep_agent.runtime.collector_worker import CollectorWorker
from lockstep_agent.sources.dcgm import Dcgm
from lockstep_agent.sources.inspector_processes import InspectorProcesses
from lockstep_agent.sources.nccl_processes import NcclProcesses
from lockstep_agent.sources.nvml import Driver, Gpu, NoDriverError
from lockstep_agent.sources.nvml.device import XidEvent
from lockstep_agent.sources.pci_tree import list_gpus
from lockstep_agent.sources.pods import PodNames
from lockstep_catalogue import agent
from lockstep_catalogue import gpu as metrics
from lockstep_records.delivery.duty import DeliveryDuty
from lockstep_records.delivery.sender import LedgerAddress
from lockstep_records.delivery.spool import EventSpool
from lockstep_records.files.jobs import plain_roots

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 60.0
_CHECK_SECONDS = 10.0
_END_TIMEOUT_SECONDS = 2.0
# A page older than this would add to the idle time that a hang is judged by.
_MAX_PAGE_AGE_SECONDS = 1.0


class GpuWorkers:
    """The collector that opens the driver and keeps a worker for each of its GPUs.

    Args:
        open_driver: opens the driver; raises NoDriverError where there is none.
        sysfs: where /sys is mounted; it has GPUs that the driver has lost.
        window_seconds: window for minimum, mean and maximum.
        clock: monotonic, in seconds.
        detail: whether the collectors of rare counters run too.
        without: names of collectors that do not run.

    Attributes:
        workers: one a GPU, empty without a driver.
    """

    name = "driver"
    tier = Tier.EVERY_TICK

    def __init__(
        self,
        open_driver: Callable[[], Driver],
        sysfs: Path,
        window_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        detail: bool = False,
        without: Collection[str] = (),
    ) -> None:
        self._detail, self._without = detail, without
        self._open_driver, self._sysfs, self._clock = open_driver, sysfs, clock
        self._window_seconds = window_seconds
        self.workers: tuple[CollectorWorker, ...] = ()
        self._driver: Driver | None = None
        self._ending: tuple[CollectorWorker, ...] = ()
        self._released = threading.Event()
        self._next_open_seconds = self._next_check_seconds = clock()
        self._next_count_seconds, self._on_bus = clock(), 0
        self._absent_reason = ""
        self._names: list[tuple[str, str]] = []

    def release(self) -> None:
        """Releases the driver within a tick, for its upgrade; safe in a signal handler."""
        self._released.set()

    def resume(self) -> None:
        """Opens the driver again within a tick."""
        self._next_open_seconds = self._clock()
        self._released.clear()

    def is_released(self) -> bool:
        """Whether the driver was released on request."""
        return self._released.is_set()

    def list_used(self) -> list[GpuInUse]:
        """Every GPU with its processes as last reported; calls no driver."""
        # Taken once: this runs in another worker, and the driver may be closed meanwhile.
        driver = self._driver
        return [
            GpuInUse(
                index=gpu.index,
                uuid=gpu.uuid,
                address=gpu.address,
                pids=gpu.pids,
                instances=gpu.mig_uuids,
            )
            for gpu in (driver.gpus if driver else ())
            if gpu.uuid
        ]

    def read_processes(self) -> None:
        """Has the driver's lists of processes read with the next tick."""
        for worker in self.workers:
            worker.make_due("gpu_processes")

    def take_xids(self) -> list[XidEvent] | None:
        """Xid events of the driver since the last call; None where it has none."""
        driver = self._driver
        queues = [gpu.xids for gpu in (driver.gpus if driver else ()) if gpu.xids is not None]
        # As many as there are now: the workers of the GPUs go on appending.
        return [queue.popleft() for queue in queues for _ in range(len(queue))] if queues else None

    def collect(self) -> Iterator[Reading]:
        """Version of the driver, number of GPUs, and whether the driver is released."""
        if self._released.is_set():
            self._close("released on request")
        else:
            self._supervise()
        # Whoever upgrades the driver waits for this: it is 1 once the library is unloaded.
        released = self._released.is_set() and self._driver is None
        yield Reading(agent.DRIVER_RELEASED, (), 1 if released else 0)
        if self._driver is not None and self._driver.version:
            versions = (self._driver.version, self._driver.cuda or "")
            yield Reading(metrics.GPU_DRIVER_INFO, versions, 1)
        if self._driver is not None:
            yield Reading(metrics.GPU_COUNT, ("nvml",), len(self._driver.gpus))
        if on_bus := self._count_on_bus():
            yield Reading(metrics.GPU_COUNT, ("pci",), on_bus)

    def _count_on_bus(self) -> int:
        now = self._clock()
        if now >= self._next_count_seconds:
            self._next_count_seconds = now + _CHECK_SECONDS
            self._on_bus = len(list_gpus(self._sysfs))
        return self._on_bus

    def _supervise(self) -> None:
        now = self._clock()
        if self._driver is None and now >= self._next_open_seconds:
            self._open(now)
        elif self._driver is not None and now >= self._next_check_seconds:
            self._next_check_seconds = now + _CHECK_SECONDS
            self._check(now)

    def _open(self, now: float) -> None:
        self._next_open_seconds = now + _RETRY_SECONDS
        try:
            driver = self._open_driver()
        except NoDriverError as error:
            if not self._absent_reason:
                _log.warning("collector=gpu state=absent reason=%r", str(error))
            self._absent_reason = str(error)
            return
        self._absent_reason = ""
        self._recognise(driver.gpus)
        self._driver = driver
        self._next_check_seconds = now + _CHECK_SECONDS
        self.workers = tuple(self._create_worker(gpu) for gpu in driver.gpus)

    def _recognise(self, gpus: tuple[Gpu, ...]) -> None:
        """Gives each GPU the name that its index had: one that is lost cannot say it any more."""
        if len(gpus) == len(self._names):
            for gpu, (uuid, address) in zip(gpus, self._names, strict=True):
                gpu.uuid, gpu.address = uuid, address

    def _create_worker(self, gpu: Gpu) -> CollectorWorker:
        return CollectorWorker(
            f"gpu{gpu.index}",
            gpu_collectors(gpu, self._window_seconds, detail=self._detail, without=self._without),
            silence=lambda state: absent_gpu(gpu, state),
            clock=self._clock,
        )

    def _check(self, now: float) -> None:
        """Reopens a driver that no longer answers, or that has lost every GPU: it was reloaded."""
        assert self._driver is not None
        # The library cannot be closed while a call hangs in it, so there is nothing to decide.
        if any(worker.is_hung for worker in self.workers):
            return
        try:
            self._driver.check()
        except NoDriverError as error:
            self._close(str(error))
            self._next_open_seconds = now
            return
        # After a reload every handle is stale, and each GPU looks lost. GPUs that are really lost
        # stay lost: then the driver is opened again once a minute only.
        all_lost = bool(self.workers) and all(worker.is_lost for worker in self.workers)
        if all_lost and now >= self._next_open_seconds:
            self._close("every GPU is lost")
            self._next_open_seconds = now

    def _close(self, reason: str) -> None:
        """Ends the workers, then closes the driver, once no call hangs in any of them."""
        if self._driver is None:
            return
        if self.workers:
            _log.warning("collector=gpu state=closing reason=%r", reason)
        self._ending, self.workers = (*self._ending, *self.workers), ()
        self._ending = tuple(
            worker for worker in self._ending if not worker.end(_END_TIMEOUT_SECONDS)
        )
        if not self._ending:
            self._names = [(gpu.uuid, gpu.address) for gpu in self._driver.gpus]
            self._driver.close()
            self._driver = None
            _log.warning("collector=gpu state=closed")


class CollectorRuntime:
    """Builds the collectors from the options and lists their workers.

    Attributes:
        gpus: the workers of the GPUs; it can release the driver.
        owner_of: user id of a job of the node.
    """

    def __init__(self, options: Options) -> None:
        self.gpus = GpuWorkers(
            partial(Driver, options.nvml_library),
            options.sysfs,
            options.scrape_seconds,
            detail=options.detail,
            without=options.without,
        )
        self.owner_of: Callable[[str], int | None]
        self._incidents, self._hangs = RecentEvents(), RecentEvents()
        self._node = _workers(self._node_collectors(options), options.without)
        # Behind the driver's workers: of a series that both have, the first one is served.
        self._dcgm = _workers(self._dcgm_collectors(options), options.without)

    def __call__(self) -> Sequence[CollectorWorker]:
        """The workers of this moment; those of the GPUs change when the driver is opened anew."""
        return (*self._node, *self.gpus.workers, *self._dcgm)

    @property
    def events_json(self) -> bytes:
        """Recent incidents of the logs, then hangs of ranks, as one JSON list."""
        return join_json_lists((self._incidents.json, self._hangs.json))

    def _node_collectors(self, options: Options) -> Iterator[Collector]:
        max_age_seconds = min(options.tick / 2, _MAX_PAGE_AGE_SECONDS)
        pages = PageStore(
            options.root,
            options.procfs,
            max_age_seconds,
            cluster=options.cluster,
            pods=PodNames(options.pod_logs),
        )
        self.owner_of = pages.owner_of
        adapters: dict[str, tuple[str, ...]] = {}
        yield from node_collectors(
            options,
            pages,
            _watched_jobs(options, pages),
            take_xids=self.gpus.take_xids,
            incidents=self._incidents,
            hangs=self._hangs,
            adapters=adapters,
        )
        yield self.gpus
        allocation = GpuAllocation(
            self.gpus.list_used,
            pages,
            procfs=options.procfs,
            kubelet=options.kubelet,
            job_files=options.job_files,
            adapters=adapters,
        )
        yield allocation
        node_events = self._node_events(options, pages, allocation)
        yield node_events
        path = options.state / "spool.sqlite" if options.state and options.ledger else None
        spool = EventSpool(options.root, path)
        unreported = UnreportedJobs(
            options.root, num_gpus_of=allocation.num_gpus_of, launcher_of=spool.launcher_of
        )
        yield _delivery(options, spool, (unreported, node_events))
        yield Archive(options.root, options.archive)

    def _node_events(
        self, options: Options, pages: PageStore, allocation: GpuAllocation
    ) -> NodeEvents:
        return NodeEvents(
            self._incidents,
            pages,
            self.gpus.list_used,
            options.node,
            has_used=allocation.has_used,
            rank_appeared=self.gpus.read_processes,
        )

    def _dcgm_collectors(self, options: Options) -> Iterator[Collector]:
        if options.dcgm:
            connect = partial(Dcgm, options.dcgm, tuple(FIELDS), options.dcgm_library)
            yield DcgmProfiling(connect, self.gpus.is_released)
        if options.dcgm_exporter:
            yield DcgmExporter(options.dcgm_exporter)


def _watched_jobs(options: Options, pages: PageStore) -> WatchedJobs:
    pods, timeout = PodNames(options.pod_logs), options.hang_timeout_seconds
    inspector = InspectorWatch(pages, InspectorProcesses(options.procfs), pods, timeout)
    # No socket is asked of a job whose files show that it moves.
    ras = RasWatch(
        pages, NcclProcesses(options.procfs), pods, timeout, moving=inspector.moving_pids
    )
    return WatchedJobs((ras, inspector), options.cluster)


def _workers(
    collectors: Iterator[Collector], without: Collection[str]
) -> tuple[CollectorWorker, ...]:
    """A worker for each collector that is on, so that one that hangs stalls no other."""
    return tuple(
        CollectorWorker(each.name, (each,)) for each in collectors if each.name not in without
    )


def _delivery(options: Options, spool: EventSpool, sources: Sequence[EventSource]) -> Delivery:
    """The delivery of events; without a ledger it keeps nothing."""
    origin = (options.cluster, options.node)
    if options.ledger is None:
        return Delivery(spool, None, origin)
    address = LedgerAddress(
        url=options.ledger, token_file=options.ledger_token, ca_file=options.ledger_ca
    )
    # The lock by which launchers of this machine know that its agent delivers.
    roots = plain_roots(options.root)
    duty = DeliveryDuty(roots[0], is_agent=True) if roots else None
    return Delivery(spool, address, origin, sources=sources, duty=duty)
