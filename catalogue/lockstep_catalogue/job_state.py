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
    "Seconds for which the loops of the node's ranks were ready to run and had no core.",
    page_field="run_queue_seconds",
)
GOODPUT_SECONDS = _metric(
    "lockstep_train_goodput_seconds_total",
    "Wall clock of the node's ranks by goodput state, up to the last step of each.",
    GOODPUT,
)
MODEL_FLOPS = _metric(
    "lockstep_train_model_flops_total",
    "Model FLOPs of the tokens trained on, where the job configures FLOPs per token.",
)
PEAK_FLOPS = _metric(
    "lockstep_train_peak_flops",
    "Peak FLOP/s of the devices of the node's ranks, where it is configured for all of them.",
)
NONFINITE_VALUES = _metric(
    "lockstep_train_nonfinite_values_total",
    "Values that were NaN or infinite, by value.",
    WHERE,
    page_field="nonfinite",
)
ANOMALIES = _metric(
    "lockstep_train_loss_anomalies_total",
    "Spikes and divergences that began in the ranks' own losses.",
    ANOMALY,
    page_field="anomalies",
)
ANOMALOUS = _metric(
    "lockstep_train_loss_anomalous_ranks",
    "Ranks of the node whose loss is in a spike or a divergence now.",
    ANOMALY,
)
MEMORY_BYTES = _metric(
    "lockstep_train_memory_bytes",
    "Largest memory of a rank of the node.",
    MEMORY,
)
ALLOCATOR_RETRIES = _metric(
    "lockstep_train_allocator_retries_total",
    "Times that a GPU's allocator freed its cache and retried, which stops the device.",
    page_field="allocator_retries",
)
OUT_OF_MEMORY = _metric(
    "lockstep_train_out_of_memory_total",
    "Allocations of device or host memory that failed.",
    page_field="out_of_memory",
)
COLLECTIONS = _metric(
    "lockstep_train_collections_total",
    "Runs of Python's garbage collector in the ranks.",
    page_field="collections",
)
COLLECTION_SECONDS = _metric(
    "lockstep_train_collection_seconds_total",
    "Seconds for which Python's garbage collector stopped a rank.",
    page_field="collection_seconds",
)
CHECKPOINT_SECONDS = _metric(
    "lockstep_train_checkpoint_seconds",
    "Seconds that steps waited for a checkpoint, and from begin to end of its write, once a node.",
    WRITING,
    buckets=(0.1, 0.5, 2.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0),
)
CHECKPOINT_BYTES = _metric(
    "lockstep_train_checkpoint_bytes_total",
    "Bytes of checkpoints that the node's ranks wrote, where they report them.",
    page_field="checkpoint_bytes",
)
CHECKPOINTS_VERIFIED = _metric(
    "lockstep_train_checkpoints_verified_total",
    "Checkpoints that were read back and found valid, by every rank of the node that writes them.",
)
SLOWEST_WRITER = _metric(
    "lockstep_train_checkpoint_slowest_writer_seconds",
    "Seconds that the node's slowest rank took to write the newest checkpoint.",
    RANK,
)
RESTORES = _metric(
    "lockstep_train_restores_total",
    "Restores of a checkpoint by outcome, once a node however many ranks take part.",
    RESTORE_OUTCOME,
)
PASSED_OVER = _metric(
    "lockstep_train_checkpoints_passed_over_total",
    "Invalid checkpoints that a restore skipped, once a node however many ranks take part.",
)
LOST_STEPS = _metric(
    "lockstep_train_restore_lost_steps_total",
    "Completed steps that restarts threw away: from the restored step to the highest one before.",
)
REPLICAS = _metric(
    "lockstep_train_replicas_compared",
    "Ranks of the node whose fingerprints were compared with another replica's.",
)
ODD_REPLICAS = _metric(
    "lockstep_train_replicas_odd",
    "Ranks whose parameters or gradients differ from their replicas: silent corruption.",
)
MEASURED_STEPS = _metric(
    "lockstep_train_measured_steps_total",
    "Steps in which the monitor timed its own calls.",
    page_field="measured_steps",
)
MEASURED_SECONDS = _metric(
    "lockstep_train_measured_seconds_total",
    "Seconds in the monitor's own calls in those steps.",
    page_field="measured_seconds",
)
TROUBLES = _metric(
    "lockstep_train_troubles_total",
    "Problems around the monitor that did not stop training, by kind.",
    TROUBLE,
    page_field="troubles",
)
