"""Metrics of a job's state: goodput, anomalies, memory, checkpoints and replicas.

All ranks of a node are summed, so that none of these costs a series per rank.
"""

from lockstep_catalogue.labels import (
    ANOMALY,
    CLUSTER,
    GOODPUT,
    JOB_ID,
    MEMORY,
    NODE,
    RANK,
    RESTORE_OUTCOME,
    TROUBLE,
    WHERE,
    WRITING,
)
from lockstep_catalogue.metric import Label, Metric

_OF_NODE = (CLUSTER, JOB_ID, NODE)


def _metric(
    name: str,
    help_: str,
    *labels: Label,
    page_field: str = "",
    buckets: tuple[float, ...] = (),
) -> Metric:
    return Metric(
        name=name,
        labels=(*_OF_NODE, *labels),
        help=help_,
        source="rank page",
        page_field=page_field,
        buckets=buckets,
    )


RUN_QUEUE_SECONDS = _metric(
    "lockstep_train_run_queue_wait_seconds_total",
    "Seconds in which training loops were ready to run without a core; sum over the node's ranks.",
    page_field="run_queue_seconds",
)
GOODPUT_SECONDS = _metric(
    "lockstep_train_goodput_seconds_total",
    "Seconds by goodput state, up to each rank's last step; sum over the node's ranks.",
    GOODPUT,
)
MODEL_FLOPS = _metric(
    "lockstep_train_model_flops_total",
    "Model FLOPs of the tokens that the node trained on; absent without FLOPs per token.",
)
PEAK_FLOPS = _metric(
    "lockstep_train_peak_flops",
    "Peak FLOP/s of the devices of the node's ranks; absent unless all are configured.",
)
NONFINITE_VALUES = _metric(
    "lockstep_train_nonfinite_values_total",
    "Losses, gradient norms and parameters found NaN or infinite; sum over the node's ranks.",
    WHERE,
    page_field="nonfinite",
)
ANOMALIES = _metric(
    "lockstep_train_loss_anomalies_total",
    "Spikes and divergences of the loss that began; sum over the node's ranks.",
    ANOMALY,
    page_field="anomalies",
)
ANOMALOUS = _metric(
    "lockstep_train_loss_anomalous_ranks",
    "Ranks of the node whose loss spikes or diverges now.",
    ANOMALY,
)
MEMORY_BYTES = _metric(
    "lockstep_train_memory_bytes",
    "Bytes of memory of the node's rank that uses most.",
    MEMORY,
)
ALLOCATOR_RETRIES = _metric(
    "lockstep_train_allocator_retries_total",
    "Retries of the GPU allocator, which free its cache and stall the device; sum over ranks.",
    page_field="allocator_retries",
)
OUT_OF_MEMORY = _metric(
    "lockstep_train_out_of_memory_total",
    "Failed allocations of device or host memory; sum over the node's ranks.",
    page_field="out_of_memory",
)
COLLECTIONS = _metric(
    "lockstep_train_collections_total",
    "Runs of Python's garbage collector; sum over the node's ranks.",
    page_field="collections",
)
COLLECTION_SECONDS = _metric(
    "lockstep_train_collection_seconds_total",
    "Seconds in which Python's garbage collector stopped a rank; sum over the node's ranks.",
    page_field="collection_seconds",
)
CHECKPOINT_SECONDS = _metric(
    "lockstep_train_checkpoint_seconds",
    "Seconds that steps waited for a checkpoint, and that its write took; once per node.",
    WRITING,
    buckets=(0.1, 0.5, 2.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0),
)
CHECKPOINT_BYTES = _metric(
    "lockstep_train_checkpoint_bytes_total",
    "Bytes of checkpoints written; sum over the node's ranks that report them.",
    page_field="checkpoint_bytes",
)
CHECKPOINTS_VERIFIED = _metric(
    "lockstep_train_checkpoints_verified_total",
    "Checkpoints read back and found valid; sum over the node's ranks that write them.",
)
SLOWEST_WRITER = _metric(
    "lockstep_train_checkpoint_slowest_writer_seconds",
    "Seconds that the node's slowest rank took to write the newest checkpoint.",
    RANK,
)
RESTORES = _metric(
    "lockstep_train_restores_total",
    "Restores of a checkpoint by outcome; each counts once per node.",
    RESTORE_OUTCOME,
)
PASSED_OVER = _metric(
    "lockstep_train_checkpoints_passed_over_total",
    "Invalid checkpoints that a restore skipped; each counts once per node.",
)
LOST_STEPS = _metric(
    "lockstep_train_restore_lost_steps_total",
    "Completed steps that restarts repeat, from the restored step to the highest one before.",
)
REPLICAS = _metric(
    "lockstep_train_replicas_compared",
    "Ranks of the node whose fingerprints were compared with another replica's.",
)
ODD_REPLICAS = _metric(
    "lockstep_train_replicas_odd",
    "Ranks of the node whose parameters or gradients differ from their replicas'.",
)
MEASURED_STEPS = _metric(
    "lockstep_train_measured_steps_total",
    "Steps in which the monitor timed its own calls; sum over the node's ranks.",
    page_field="measured_steps",
)
MEASURED_SECONDS = _metric(
    "lockstep_train_measured_seconds_total",
    "Seconds in the monitor's own calls, in the steps that it timed; sum over the node's ranks.",
    page_field="measured_seconds",
)
TROUBLES = _metric(
    "lockstep_train_troubles_total",
    "Problems around the monitor by kind, none of which stops training; sum over the node's ranks.",
    TROUBLE,
    page_field="troubles",
)
