"""One GPU: faults of its memory, and the recovery action that its driver asks for."""

from collections.abc import Iterator
from itertools import product

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.collectors.gpu.reading import Values, gpu_collector, read_by_label, unscoped
from lockstep_agent.sources.nvml import Gpu
from lockstep_catalogue import gpu as metrics
from lockstep_catalogue.labels import ACTION, AVAILABILITY, SRAM_UNIT

_CORRECTED, _UNCORRECTED = "corrected", "uncorrected"
_KINDS = {_CORRECTED: 0, _UNCORRECTED: 1}
# volatile counts restart when the driver is loaded; aggregate ones are in the board's InfoROM
_SCOPES = {"volatile": 0, "aggregate": 1}
_TOTALS = {
    (_CORRECTED, "volatile"): 3,
    (_UNCORRECTED, "volatile"): 4,
    (_CORRECTED, "aggregate"): 5,
    (_UNCORRECTED, "aggregate"): 6,
}
_LOCATIONS = {
    "l1": 0,
    "l2": 1,
    "dram": 2,
    "register_file": 3,
    "texture": 4,
    "cbu": 6,
    "sram": 7,
}
# whether it exists depends on the driver (about 590 and newer), not on the chip
_RECOVERY = 230
_RETIRED = {"single_bit": 29, "double_bit": 30}
_RETIRED_PENDING = 31
_BUCKETS = {
    "l2": "aggregateUncBucketL2",
    "sm": "aggregateUncBucketSm",
    "pcie": "aggregateUncBucketPcie",
    "mcu": "aggregateUncBucketMcu",
    "other": "aggregateUncBucketOther",
}


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
    action = values.get((_RECOVERY, 0))
    if action is not None and 0 <= action < len(ACTION.values):
        labels = (*gpu.labels, ACTION.values[int(action)])
        yield Reading(metrics.GPU_RECOVERY_ACTION, labels, 1)


@gpu_collector("gpu_fault_places", Tier.TEN_SECONDS)
def fault_locations(gpu: Gpu, _: Values) -> Iterator[Reading]:
    """Counts by kind, scope and location."""
    # H100 and H200 answer for DRAM and SRAM only, older chips for others too
    for kind, scope, name in product(_KINDS, _SCOPES, _LOCATIONS):
        numbers = _KINDS[kind], _SCOPES[scope], _LOCATIONS[name]
        count = gpu.query("nvmlDeviceGetMemoryErrorCounter", *numbers)
        labels = (*gpu.labels, kind, scope, name)
        yield from present(metrics.GPU_ECC_LOCATION_ERRORS, labels, count)


@gpu_collector("gpu_slow_faults", Tier.MINUTE, unscoped(*_RETIRED.values(), _RETIRED_PENDING))
def lifetime_faults(gpu: Gpu, values: Values) -> Iterator[Reading]:
    """What changes over months and tells when to replace a GPU: spare rows, retired pages."""
    banks = gpu.query("nvmlDeviceGetRowRemapperHistogram")
    for name in AVAILABILITY.values if banks is not None else ():
        yield Reading(metrics.GPU_REMAP_BANKS, (*gpu.labels, name), getattr(banks, name))
    sram = gpu.query_struct("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t")
    if sram is not None:
        exceeded = 1 if sram.bThresholdExceeded else 0
        yield Reading(metrics.GPU_SRAM_THRESHOLD_EXCEEDED, gpu.labels, exceeded)
        for unit in SRAM_UNIT.values:
            count = getattr(sram, _BUCKETS[unit])
            yield Reading(metrics.GPU_SRAM_UNCORRECTED, (*gpu.labels, unit), count)
    # GPUs before Ampere retire pages; later ones remap rows
    yield from read_by_label(metrics.GPU_RETIRED_PAGES, gpu.labels, _RETIRED, values)
    if (_RETIRED_PENDING, 0) in values:
        pending = 1 if values[_RETIRED_PENDING, 0] else 0
        yield Reading(metrics.GPU_RETIRED_PENDING, gpu.labels, pending)
