"""The parts of a rank's monitor, each of which fails by itself, and the ranks that lack one."""

from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE
from lockstep_catalogue.metric import Label, Metric

PART = Label(
    name="part",
    help="part of a rank's monitor that fails, and goes off, by itself",
    values=(
        "versions",
        "gpu_identity",
        "process_age",
        "earlier_attempts",
        "logs",
        "spans",
        "memory",
        "garbage_collection",
        "page_check",
        "loop_check",
        "anomalies",
        "loop_numbers",
        "device_numbers",
        "device_events",
        "operations",
        "switches",
        "hang_watch",
        "flight_recorder",
        "profiler",
        "forward",
        "backward",
        "optimizer",
        "gradient_buckets",
        "collectives",
        "pipeline",
        "fingerprints",
        "checkpoints",
        "restores",
        "blocks",
        "forks",
        "last_error",
    ),
)

FAILED_PARTS = Metric(
    name="lockstep_train_failed_part_ranks",
    labels=(CLUSTER, JOB_ID, NODE, PART),
    help="Ranks of the node whose monitor disabled a part after an error in it; absent at 0.",
    source="rank page",
)
