"""One GPU: faults of its memory, the recovery that its driver asks for, and its Xid events."""

from collections import deque
from collections.abc import Iterator
from itertools import product

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.collectors.gpu.reading import Values, gpu_collector, read_by_label, unscoped
from lockstep_agent.sources.nvml import Gpu, ids
from lockstep_agent.sources.nvml.device import Events
from lockstep_catalogue import gpu as metrics
from lockstep_catalogue.labels import AVAILABILITY

_CORRECTED, _UNCORRECTED = "corrected", "uncorrected"
_KINDS = {
    _CORRECTED: ids.NVML_MEMORY_ERROR_TYPE_CORRECTED,
    _UNCORRECTED: ids.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
}
# volatile counts restart when the driver is loaded; aggregate ones are in the board's InfoROM
_SCOPES = {"volatile": ids.NVML_VOLATILE_ECC, "aggregate": ids.NVML_AGGREGATE_ECC}
_TOTALS = {
    (_CORRECTED, "volatile"): ids.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
    (_UNCORRECTED, "volatile"): ids.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    (_CORRECTED, "aggregate"): ids.NVML_FI_DEV_ECC_SBE_AGG_TOTAL,
    (_UNCORRECTED, "aggregate"): ids.NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
}
_LOCATIONS = {
    "l1": ids.NVML_MEMORY_LOCATION_L1_CACHE,
    "l2": ids.NVML_MEMORY_LOCATION_L2_CACHE,
    "dram": ids.NVML_MEMORY_LOCATION_DRAM,
    "register_file": ids.NVML_MEMORY_LOCATION_REGISTER_FILE,
    "texture": ids.NVML_MEMORY_LOCATION_TEXTURE_MEMORY,
    "cbu": ids.NVML_MEMORY_LOCATION_CBU,
    "sram": ids.NVML_MEMORY_LOCATION_SRAM,
}
# whether it exists depends on the driver (about 590 and newer), not on the chip
_RECOVERY = ids.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_ACTIONS = {
    ids.NVML_GPU_RECOVERY_ACTION_NONE: "none",
    ids.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "gpu_reset",
    ids.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "node_reboot",
    ids.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "drain_p2p",
    ids.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "drain_and_reset",
    ids.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "recover_imex",
    ids.NVML_GPU_RECOVERY_ACTION_BUS_RESET: "bus_reset",
    ids.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "system_reboot",
}
_RETIRED = {"single_bit": ids.NVML_FI_DEV_RETIRED_SBE, "double_bit": ids.NVML_FI_DEV_RETIRED_DBE}
_RETIRED_PENDING = ids.NVML_FI_DEV_RETIRED_PENDING
_MAX_WAITING = 1000


@gpu_collector("gpu_faults", Tier.TEN_SECONDS, unscoped(*_TOTALS.values(), _RECOVERY))
def faults(gpu: Gpu, values: Values) -> Iterator[Reading]:
    """Counts since the driver was loaded (volatile) and over the GPU's life (aggregate)."""
    for (kind, scope), field in _TOTALS.items():
        count = values.get((field, 0))
        if count is None:
            count = gpu.query("nvmlDeviceGetTotalEccErrors", _KINDS[kind], _SCOPES[scope])
        yield from present(metrics.GPU_ECC_ERRORS, (*gpu.labels, kind, scope), count)
    rows = gpu.query("nvmlDeviceGetRemappedRows")
    if rows is not None:
        # pending needs a reset of the GPU; failed means that no spare row is left
        corrected, uncorrected, pending, failed = rows
        yield Reading(metrics.GPU_REMAPPED_ROWS, (*gpu.labels, _CORRECTED), corrected)
        yield Reading(metrics.GPU_REMAPPED_ROWS, (*gpu.labels, _UNCORRECTED), uncorrected)
        yield Reading(metrics.GPU_REMAP_PENDING, gpu.labels, 1 if pending else 0)
        yield Reading(metrics.GPU_REMAP_FAILED, gpu.labels, 1 if failed else 0)
    action = _ACTIONS.get(int(values.get((_RECOVERY, 0), -1)))
    if action is not None:
        yield Reading(metrics.GPU_RECOVERY_ACTION, (*gpu.labels, action), 1)


@gpu_collector("gpu_fault_locations", Tier.TEN_SECONDS)
def fault_locations(gpu: Gpu, _: Values) -> Iterator[Reading]:
    """Counts by kind, scope and location."""
    # H100 and H200 answer for DRAM and SRAM only, older chips for others too
    for kind, scope, name in product(_KINDS, _SCOPES, _LOCATIONS):
        numbers = _KINDS[kind], _SCOPES[scope], _LOCATIONS[name]
        count = gpu.query("nvmlDeviceGetMemoryErrorCounter", *numbers)
        labels = (*gpu.labels, kind, scope, name)
        yield from present(metrics.GPU_ECC_LOCATION_ERRORS, labels, count)


@gpu_collector("gpu_lifetime_faults", Tier.MINUTE, unscoped(*_RETIRED.values(), _RETIRED_PENDING))
def lifetime_faults(gpu: Gpu, values: Values) -> Iterator[Reading]:
    """What changes over months and tells when to replace a GPU: spare rows, retired pages."""
    banks = gpu.query("nvmlDeviceGetRowRemapperHistogram")
    for name in AVAILABILITY.values if banks is not None else ():
        yield Reading(metrics.GPU_REMAP_BANKS, (*gpu.labels, name), getattr(banks, name))
    sram = gpu.query_struct("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t")
    if sram is not None:
        exceeded = 1 if sram.bThresholdExceeded else 0
        yield Reading(metrics.GPU_SRAM_THRESHOLD_EXCEEDED, gpu.labels, exceeded)
    # GPUs before Ampere retire pages; later ones remap rows
    yield from read_by_label(metrics.GPU_RETIRED_PAGES, gpu.labels, _RETIRED, values)
    if (_RETIRED_PENDING, 0) in values:
        pending = 1 if values[_RETIRED_PENDING, 0] else 0
        yield Reading(metrics.GPU_RETIRED_PENDING, gpu.labels, pending)


class GpuEvents:
    """Takes a GPU's Xids from its driver every ten seconds, and in the tick after it was lost."""

    name = "gpu_events"
    # the driver queues events until they are taken, and by then the kernel log has reported most
    tier = Tier.TEN_SECONDS

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._events = gpu, Events(gpu)

    def collect(self) -> Iterator[Reading]:
        """No readings; appends the events to ``gpu.xids``."""
        events = self._events.read()
        if events is None:
            self._gpu.xids = None
        elif self._gpu.xids is None:
            self._gpu.xids = deque(events, maxlen=_MAX_WAITING)
        else:
            self._gpu.xids.extend(events)
        return iter(())
