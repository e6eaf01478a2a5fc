"""Metrics of a GPU's memory faults and of the recovery that the driver demands (NVML)."""

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
from lockstep_catalogue.metric import Metric

GPU_ECC_ERRORS = Metric(
    name="lockstep_gpu_ecc_errors_total",
    labels=(*OF_GPU, ECC, ECC_SCOPE),
    help="Memory errors of the GPU, since the driver was loaded or over its life.",
    source="fields 3 to 6, else nvmlDeviceGetTotalEccErrors",
)
# H100 and H200 report DRAM and SRAM only; the other locations are not supported.
GPU_ECC_LOCATION_ERRORS = Metric(
    name="lockstep_gpu_ecc_location_errors_total",
    labels=(*OF_GPU, ECC, ECC_SCOPE, LOCATION),
    help="Memory errors by the kind of memory.",
    source="nvmlDeviceGetMemoryErrorCounter",
)
# The flag is NVIDIA's criterion for a replacement.
GPU_SRAM_THRESHOLD_EXCEEDED = Metric(
    name="lockstep_gpu_sram_ecc_threshold_exceeded",
    labels=OF_GPU,
    help="1 when the GPU has so many SRAM errors that it should be replaced, else 0.",
    source="nvmlDeviceGetSramEccErrorStatus",
)
GPU_SRAM_UNCORRECTED = Metric(
    name="lockstep_gpu_sram_uncorrected_errors_total",
    labels=(*OF_GPU, SRAM_UNIT),
    help="Uncorrected SRAM errors over the life of the GPU, by unit.",
    source="nvmlDeviceGetSramEccErrorStatus",
)
GPU_REMAPPED_ROWS = Metric(
    name="lockstep_gpu_remapped_rows_total",
    labels=(*OF_GPU, ECC),
    help="Memory rows replaced by spare ones, by kind of error.",
    source="nvmlDeviceGetRemappedRows",
)
GPU_REMAP_PENDING = Metric(
    name="lockstep_gpu_row_remap_pending",
    labels=OF_GPU,
    help="1 when a row waits for a reset to be replaced, else 0.",
    source="nvmlDeviceGetRemappedRows",
)
GPU_REMAP_FAILED = Metric(
    name="lockstep_gpu_row_remap_failed",
    labels=OF_GPU,
    help="1 when a row could not be replaced and the GPU should be, else 0.",
    source="nvmlDeviceGetRemappedRows",
)
# A healthy H100 has 2,560 banks with all spare rows, an H200 3,072.
GPU_REMAP_BANKS = Metric(
    name="lockstep_gpu_row_remap_banks",
    labels=(*OF_GPU, AVAILABILITY),
    help="Number of memory banks by how many spare rows they have left.",
    source="nvmlDeviceGetRowRemapperHistogram",
)
# From Ampere on rows are remapped and no pages are retired.
GPU_RETIRED_PAGES = Metric(
    name="lockstep_gpu_retired_pages_total",
    labels=(*OF_GPU, RETIRED_BY),
    help="Memory pages retired; on GPUs before row remapping.",
    source="fields 29 and 30",
)
GPU_RETIRED_PENDING = Metric(
    name="lockstep_gpu_retired_pages_pending",
    labels=OF_GPU,
    help="1 when a page waits for a restart to be retired, else 0.",
    source="field 31",
)
# Depends on the driver, not on the chip: 590 and later report it on a Turing too.
GPU_RECOVERY_ACTION = Metric(
    name="lockstep_gpu_recovery_action_info",
    labels=(*OF_GPU, ACTION),
    help="Action that the driver demands for the GPU, always 1 on the present action.",
    source="field 230",
)
