"""How a training job is: where its time goes, its numbers, memory, checkpoints and replicas.

All ranks of a node are added up, so that none of this costs a series a rank.
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
from lockstep_catalogue.metric import Kind, Label, Metric, Unit

_OF_NODE = (CLUSTER, JOB_ID, NODE)


def _metric(name: str, kind: Kind, unit: Unit, help_: str, *labels: Label) -> Metric:
    return Metric(
        name=name, kind=kind, unit=unit, labels=(*_OF_NODE, *labels), help=help_, source="rank page"
    )


GOODPUT_SECONDS = _metric(
    "lockstep_train_goodput_seconds_total",
    Kind.COUNTER,
    Unit.SECONDS,
    "Wall clock of the node's ranks by what it went into, up to each one's last step.",
    GOODPUT,
)
MODEL_FLOPS = _metric(
    "lockstep_train_model_flops_total",
    Kind.COUNTER,
    Unit.NONE,
    "Model FLOPs of the tokens trained on, where the job told FLOPs a token.",
)
PEAK_FLOPS = _metric(
    "lockstep_train_peak_flops",
    Kind.GAUGE,
    Unit.NONE,
    "FLOP/s that the devices of the node's ranks could do, where the job told it of all.",
)
NONFINITE_VALUES = _metric(
    "lockstep_train_nonfinite_values_total",
    Kind.COUNTER,
    Unit.NONE,
    "Values that were NaN or infinite by where they were seen.",
    WHERE,
)
ANOMALIES = _metric(
    "lockstep_train_loss_anomalies_total",
    Kind.COUNTER,
    Unit.NONE,
    "Spikes and divergences of the loss that began, as each rank judges its own.",
    ANOMALY,
)
ANOMALOUS = _metric(
    "lockstep_train_loss_anomalous_ranks",
    Kind.GAUGE,
    Unit.NONE,
    "Ranks of the node in whose loss a spike or a divergence lasts.",
    ANOMALY,
)
MEMORY_BYTES = _metric(
    "lockstep_train_memory_bytes",
    Kind.GAUGE,
    Unit.BYTES,
    "Memory of the rank of the node that has most of it.",
    MEMORY,
)
ALLOCATOR_RETRIES = _metric(
    "lockstep_train_allocator_retries_total",
    Kind.COUNTER,
    Unit.NONE,
    "Times that a GPU's allocator gave all back and tried again, which stops the device.",
)
OUT_OF_MEMORY = _metric(
    "lockstep_train_out_of_memory_total",
    Kind.COUNTER,
    Unit.NONE,
    "Allocations of device or host memory that failed.",
)
COLLECTIONS = _metric(
    "lockstep_train_collections_total",
    Kind.COUNTER,
    Unit.NONE,
    "Runs of Python's garbage collector in the ranks.",
)
COLLECTION_SECONDS = _metric(
    "lockstep_train_collection_seconds_total",
    Kind.COUNTER,
    Unit.SECONDS,
    "Seconds in which Python's garbage collector held up a rank.",
)
CHECKPOINT_SECONDS = _metric(
    "lockstep_train_checkpoint_seconds_total",
    Kind.COUNTER,
    Unit.SECONDS,
    "Seconds of writing checkpoints: those that steps waited for, and those from begin to end.",
    WRITING,
)
CHECKPOINT_BYTES = _metric(
    "lockstep_train_checkpoint_bytes_total",
    Kind.COUNTER,
    Unit.BYTES,
    "Bytes of checkpoints that the node's ranks wrote, where they know it.",
)
CHECKPOINTS_VERIFIED = _metric(
    "lockstep_train_checkpoints_verified_total",
    Kind.COUNTER,
    Unit.NONE,
    "Checkpoints that were read back and proved good.",
)
SLOWEST_WRITER = _metric(
    "lockstep_train_checkpoint_slowest_writer_seconds",
    Kind.GAUGE,
    Unit.SECONDS,
    "Seconds that the node's slowest rank wrote the newest checkpoint; the rank is the label.",
    RANK,
)
RESTORES = _metric(
    "lockstep_train_restores_total",
    Kind.COUNTER,
    Unit.NONE,
    "Restores of a checkpoint by outcome.",
    RESTORE_OUTCOME,
)
PASSED_OVER = _metric(
    "lockstep_train_checkpoints_passed_over_total",
    Kind.COUNTER,
    Unit.NONE,
    "Checkpoints that a restore passed over as not valid.",
)
REPLICAS = _metric(
    "lockstep_train_replicas_compared",
    Kind.GAUGE,
    Unit.NONE,
    "Ranks of the node whose fingerprints could be compared with another replica's.",
)
ODD_REPLICAS = _metric(
    "lockstep_train_replicas_odd",
    Kind.GAUGE,
    Unit.NONE,
    "Ranks whose parameters or gradients are not those of their replicas: silent corruption.",
)
MEASURED_STEPS = _metric(
    "lockstep_train_measured_steps_total",
    Kind.COUNTER,
    Unit.NONE,
    "Steps in which the monitor timed its own calls.",
)
MEASURED_SECONDS = _metric(
    "lockstep_train_measured_seconds_total",
    Kind.COUNTER,
    Unit.SECONDS,
    "Seconds in the monitor's own calls in those steps.",
)
TROUBLES = _metric(
    "lockstep_train_troubles_total",
    Kind.COUNTER,
    Unit.NONE,
    "What went wrong around the monitor while training went on, by kind.",
    TROUBLE,
)

METRICS = (
    GOODPUT_SECONDS,
    MODEL_FLOPS,
    PEAK_FLOPS,
    NONFINITE_VALUES,
    ANOMALIES,
    ANOMALOUS,
    MEMORY_BYTES,
    ALLOCATOR_RETRIES,
    OUT_OF_MEMORY,
    COLLECTIONS,
    COLLECTION_SECONDS,
    CHECKPOINT_SECONDS,
    CHECKPOINT_BYTES,
    CHECKPOINTS_VERIFIED,
    SLOWEST_WRITER,
    RESTORES,
    PASSED_OVER,
    REPLICAS,
    ODD_REPLICAS,
    MEASURED_STEPS,
    MEASURED_SECONDS,
    TROUBLES,
)
