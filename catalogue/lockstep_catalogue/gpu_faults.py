"""Faults of a GPU's memory and the driver's own verdict on it; by the driver (NVML)."""

from lockstep_catalogue.labels import (
    ACTION,
    AVAILABILITY,
    ECC,
    ECC_SCOPE,
    LOCATION,
    OF_GPU,
    RETIRED_BY,
    SRAM_UNIT,
)
from lockstep_catalogue.metric import Kind, Metric, Unit

GPU_ECC_ERRORS = Metric(
    name="lockstep_gpu_ecc_errors_total",
    kind=Kind.COUNTER,
    unit=Unit.NONE,
    labels=(*OF_GPU, ECC, ECC_SCOPE),
    help="Memory errors found since the driver was loaded, or over the life of the GPU.",
    source="fields 3 to 6, else nvmlDeviceGetTotalEccErrors",
)
GPU_ECC_LOCATION_ERRORS = Metric(
    name="lockstep_gpu_ecc_location_errors_total",
    kind=Kind.COUNTER,
    unit=Unit.NONE,
    labels=(*OF_GPU, ECC, ECC_SCOPE, LOCATION),
    help="Memory errors found, by the kind of memory.",
    source="nvmlDeviceGetMemoryErrorCounter",
)
GPU_SRAM_THRESHOLD_EXCEEDED = Metric(
    name="lockstep_gpu_sram_ecc_threshold_exceeded",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=OF_GPU,
    help="1 when the GPU had so many SRAM errors that it should be replaced, else 0.",
    source="nvmlDeviceGetSramEccErrorStatus",
)
GPU_SRAM_UNCORRECTED = Metric(
    name="lockstep_gpu_sram_uncorrected_errors_total",
    kind=Kind.COUNTER,
    unit=Unit.NONE,
    labels=(*OF_GPU, SRAM_UNIT),
    help="Uncorrected SRAM errors over the life of the GPU, by where they were.",
    source="nvmlDeviceGetSramEccErrorStatus",
)
GPU_REMAPPED_ROWS = Metric(
    name="lockstep_gpu_remapped_rows_total",
    kind=Kind.COUNTER,
    unit=Unit.NONE,
    labels=(*OF_GPU, ECC),
    help="Memory rows replaced by spare ones, by the kind of error that led to it.",
    source="nvmlDeviceGetRemappedRows",
)
GPU_REMAP_PENDING = Metric(
    name="lockstep_gpu_row_remap_pending",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=OF_GPU,
    help="1 when a row waits for a reset to be replaced, else 0.",
    source="nvmlDeviceGetRemappedRows",
)
GPU_REMAP_FAILED = Metric(
    name="lockstep_gpu_row_remap_failed",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=OF_GPU,
    help="1 when a row could not be replaced and the GPU should be, else 0.",
    source="nvmlDeviceGetRemappedRows",
)
GPU_REMAP_BANKS = Metric(
    name="lockstep_gpu_row_remap_banks",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=(*OF_GPU, AVAILABILITY),
    help="Number of memory banks by how many spare rows they have left.",
    source="nvmlDeviceGetRowRemapperHistogram",
)
GPU_RETIRED_PAGES = Metric(
    name="lockstep_gpu_retired_pages_total",
    kind=Kind.COUNTER,
    unit=Unit.NONE,
    labels=(*OF_GPU, RETIRED_BY),
    help="Memory pages retired; on GPUs before row remapping.",
    source="fields 29 and 30",
)
GPU_RETIRED_PENDING = Metric(
    name="lockstep_gpu_retired_pages_pending",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=OF_GPU,
    help="1 when a page waits for a restart to be retired, else 0.",
    source="field 31",
)
GPU_RECOVERY_ACTION = Metric(
    name="lockstep_gpu_recovery_action_info",
    kind=Kind.GAUGE,
    unit=Unit.NONE,
    labels=(*OF_GPU, ACTION),
    help="What the driver says must be done to the GPU, always 1 on the action of this moment.",
    source="field 230",
)

METRICS = (
    GPU_ECC_ERRORS,
    GPU_ECC_LOCATION_ERRORS,
    GPU_SRAM_THRESHOLD_EXCEEDED,
    GPU_SRAM_UNCORRECTED,
    GPU_REMAPPED_ROWS,
    GPU_REMAP_PENDING,
    GPU_REMAP_FAILED,
    GPU_REMAP_BANKS,
    GPU_RETIRED_PAGES,
    GPU_RETIRED_PENDING,
    GPU_RECOVERY_ACTION,
)
