"""Every worker of one agent: one for each collector of the node, one for the driver, one a GPU."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from lockstep_agent.collector import Collector
from lockstep_agent.collectors import node_collectors
from lockstep_agent.collectors.gpu.allocation import GpuAllocation
from lockstep_agent.collectors.gpu.dcgm import FIELDS, DcgmProfiling
from lockstep_agent.collectors.gpu.dcgm_exporter import DcgmExporter
from lockstep_agent.delivery.archive import Archive
from lockstep_agent.delivery.node_events import NodeEvents
from lockstep_agent.delivery.sender import Delivery, EventSource
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.options import Options
from lockstep_agent.recent_events import RecentEvents, join_json_lists
from lockstep_agent.runtime.collector_worker import CollectorWorker
from lockstep_agent.runtime.gpu_workers import GpuWorkers
from lockstep_agent.sources.dcgm import Dcgm
from lockstep_agent.sources.nvml import Driver
from lockstep_agent.sources.pods import PodNames
from lockstep_outcomes.unreported import UnreportedJobs
from lockstep_records.delivery.duty import DeliveryDuty
from lockstep_records.delivery.sender import LedgerAddress
from lockstep_records.delivery.spool import EventSpool
from lockstep_records.files.jobs import plain_roots

# A page older than this would add to the idle time that a hang is judged by.
_MAX_PAGE_AGE_SECONDS = 1.0


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
        node_events = NodeEvents(
            self._incidents, pages, self.gpus.list_used, options.node, has_used=allocation.has_used
        )
        yield node_events
        path = options.state / "spool.sqlite" if options.state and options.ledger else None
        spool = EventSpool(options.root, path)
        unreported = UnreportedJobs(
            options.root, num_gpus_of=allocation.num_gpus_of, launcher_of=spool.launcher_of
        )
        yield _delivery(options, spool, (unreported, node_events))
        yield Archive(options.root, options.archive)

    def _dcgm_collectors(self, options: Options) -> Iterator[Collector]:
        if options.dcgm:
            connect = partial(Dcgm, options.dcgm, tuple(FIELDS), options.dcgm_library)
            yield DcgmProfiling(connect, self.gpus.is_released)
        if options.dcgm_exporter:
            yield DcgmExporter(options.dcgm_exporter)


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
