"""Every worker of one agent: one for each collector of the node, one for the driver, one a GPU."""

from collections.abc import Sequence
from functools import partial

from lockstep_agent.collectors import node_collectors
from lockstep_agent.collectors.dcgm import FIELDS, Profiling
from lockstep_agent.collectors.dcgm_exporter import DcgmExporter
from lockstep_agent.collectors.gpu_allocation import GpuAllocation
from lockstep_agent.collectors.hangs import Hangs
from lockstep_agent.collectors.kernel_log import KernelLog
from lockstep_agent.delivery.archive import Archive
from lockstep_agent.delivery.sender import Delivery
from lockstep_agent.delivery.spool import Spool
from lockstep_agent.options import Options
from lockstep_agent.recent_events import join_json_lists
from lockstep_agent.runtime.collector_worker import CollectorWorker
from lockstep_agent.runtime.gpu_workers import GpuWorkers
from lockstep_agent.sources.dcgm import Dcgm
from lockstep_agent.sources.nvml import Driver
from lockstep_agent.state_file import StateFile


class CollectorRuntime:
    """Tells the workers of each moment.

    Attributes:
        gpus: what can let go of the driver.
        kernel_log: what tells the recent incidents.
    """

    def __init__(self, options: Options) -> None:
        self.gpus = GpuWorkers(
            partial(Driver, options.nvml_library),
            options.sysfs,
            options.window_seconds,
            detail=options.detail,
        )
        self._after: tuple[CollectorWorker, ...] = ()
        if options.dcgm:
            connect = partial(Dcgm, options.dcgm, tuple(FIELDS), options.dcgm_library)
            profiling = Profiling(connect, self.gpus.is_released)
            self._after = (CollectorWorker(profiling.name, (profiling,)),)
        if options.dcgm_exporter:
            taken_over = DcgmExporter(options.dcgm_exporter)
            self._after += (CollectorWorker(taken_over.name, (taken_over,)),)
        owners = GpuAllocation(
            self.gpus.in_use,
            root=options.root,
            procfs=options.procfs,
            kubelet=options.kubelet,
            job_files=options.job_files,
        )
        spool = Spool(options.root, StateFile(options.state and options.state / "spool.json"))
        collectors = (
            *node_collectors(options, self.gpus.take_xids),
            self.gpus,
            owners,
            Delivery(spool, options.ledger, (options.cluster, options.node)),
            Archive(options.root, options.archive),
        )
        self.kernel_log = next(one for one in collectors if isinstance(one, KernelLog))
        self._hangs = next(one for one in collectors if isinstance(one, Hangs))
        self._fixed = tuple(
            CollectorWorker(collector.name, (collector,)) for collector in collectors
        )

    def __call__(self) -> Sequence[CollectorWorker]:
        """The workers of this moment."""
        return (*self._fixed, *self.gpus.workers, *self._after)

    @property
    def events_json(self) -> bytes:
        """Recent incidents of the logs, then hangs of ranks, as one JSON list."""
        return join_json_lists((self.kernel_log.recent.json, self._hangs.recent.json))
