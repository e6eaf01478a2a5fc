"""One GPU: faults of its memory, and the recovery action that its driver asks for."""

from collections.abc import Iterator

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.sources.nvml import Fields, Gpu
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


class GpuFaults:
    """Reads error counts, remapped rows and the recovery action."""

    name = "gpu_faults"
    tier = Tier.TEN_SECONDS

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._fields = Fields(gpu, ((field, 0) for field in (*_TOTALS.values(), _RECOVERY)))

    def collect(self) -> Iterator[Reading]:
        """Counts since the driver was loaded (volatile) and over the GPU's life (aggregate)."""
        values, labels = self._fields.read(), self._gpu.labels
        for (kind, scope), field in _TOTALS.items():
            count = values.get((field, 0))
            if count is None:
                count = self._gpu.query("nvmlDeviceGetTotalEccErrors", _KINDS[kind], _SCOPES[scope])
            if count is not None:
                yield Reading(metrics.GPU_ECC_ERRORS, (*labels, kind, scope), count)
        yield from self._remapped(labels)
        action = values.get((_RECOVERY, 0))
        if action is not None and 0 <= action < len(ACTION.values):
            action_labels = (*labels, ACTION.values[int(action)])
            yield Reading(metrics.GPU_RECOVERY_ACTION, action_labels, 1)

    def _remapped(self, labels: tuple[str, str]) -> Iterator[Reading]:
        rows = self._gpu.query("nvmlDeviceGetRemappedRows")
        if rows is not None:
            # pending needs a reset of the GPU; failed means that no spare row is left
            corrected, uncorrected, pending, failed = rows
            yield Reading(metrics.GPU_REMAPPED_ROWS, (*labels, _CORRECTED), corrected)
            yield Reading(metrics.GPU_REMAPPED_ROWS, (*labels, _UNCORRECTED), uncorrected)
            yield Reading(metrics.GPU_REMAP_PENDING, labels, 1 if pending else 0)
            yield Reading(metrics.GPU_REMAP_FAILED, labels, 1 if failed else 0)


class GpuFaultLocations:
    """Reads error counts by the location in the GPU."""

    name = "gpu_fault_places"
    tier = Tier.TEN_SECONDS

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def collect(self) -> Iterator[Reading]:
        """Counts by kind, scope and location."""
        # H100 and H200 answer for DRAM and SRAM only, older chips for others too
        for kind, error in _KINDS.items():
            for scope, counter in _SCOPES.items():
                for name, location in _LOCATIONS.items():
                    count = self._gpu.query(
                        "nvmlDeviceGetMemoryErrorCounter", error, counter, location
                    )
                    if count is not None:
                        labels = (*self._gpu.labels, kind, scope, name)
                        yield Reading(metrics.GPU_ECC_LOCATION_ERRORS, labels, count)


class GpuLifetimeFaults:
    """Reads what changes over months: spare rows, the SRAM threshold, retired pages."""

    name = "gpu_slow_faults"
    tier = Tier.MINUTE

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._fields = Fields(gpu, ((field, 0) for field in (*_RETIRED.values(), _RETIRED_PENDING)))

    def collect(self) -> Iterator[Reading]:
        """Criteria for the replacement of a GPU."""
        labels = self._gpu.labels
        banks = self._gpu.query("nvmlDeviceGetRowRemapperHistogram")
        for name in AVAILABILITY.values if banks is not None else ():
            yield Reading(metrics.GPU_REMAP_BANKS, (*labels, name), getattr(banks, name))
        sram = self._gpu.query_struct(
            "nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t"
        )
        if sram is not None:
            exceeded = 1 if sram.bThresholdExceeded else 0
            yield Reading(metrics.GPU_SRAM_THRESHOLD_EXCEEDED, labels, exceeded)
            for unit in SRAM_UNIT.values:
                count = getattr(sram, _BUCKETS[unit])
                yield Reading(metrics.GPU_SRAM_UNCORRECTED, (*labels, unit), count)
        # GPUs before Ampere retire pages; later ones remap rows
        values = self._fields.read()
        for cause, field in _RETIRED.items():
            if (field, 0) in values:
                yield Reading(metrics.GPU_RETIRED_PAGES, (*labels, cause), values[field, 0])
        if (_RETIRED_PENDING, 0) in values:
            pending = 1 if values[_RETIRED_PENDING, 0] else 0
            yield Reading(metrics.GPU_RETIRED_PENDING, labels, pending)
