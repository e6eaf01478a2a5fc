"""Metrics of a training job: twelve series per rank at most, fifteen where it is asynchronous.

All others are summed by the agent.
"""

from typing import Any

from lockstep_catalogue import labels
from lockstep_catalogue.metric import Label, Metric, Stability

_RANK_LABELS = (labels.CLUSTER, labels.JOB_ID, labels.RANK)
_NODE_LABELS = (labels.CLUSTER, labels.JOB_ID, labels.NODE)
_PAGE = "rank page"


def _metric(name: str, help_text: str, *by: Label, source: str = _PAGE, **settings: Any) -> Metric:
    return Metric(name=name, labels=(*_NODE_LABELS, *by), help=help_text, source=source, **settings)


# Identity lies in one info series: as labels of each series it would multiply them by every job.
RANK_INFO = Metric(
    name="lockstep_train_rank_info",
    labels=(
        *_RANK_LABELS,
        labels.PROJECT,
        labels.NODE,
        labels.LOCAL_RANK,
        labels.WORLD_SIZE,
        labels.ATTEMPT,
        labels.UUID,
        labels.NAMESPACE,
        labels.POD,
        labels.CONTAINER,
        labels.CLOCK,
        *labels.MESH,
    ),
    help="Identity of a rank in its newest attempt, always 1; join on cluster, job_id, rank.",
    source=_PAGE,
    stability=Stability.STABLE,
)
STEPS = Metric(
    name="lockstep_train_steps_total",
    labels=_RANK_LABELS,
    help="Optimizer steps that the rank has completed, over all attempts.",
    source=_PAGE,
    stability=Stability.STABLE,
)
PHASE_SECONDS = Metric(
    name="lockstep_train_phase_seconds_total",
    labels=(*_RANK_LABELS, labels.PHASE),
    help="Seconds of the rank's completed steps by phase; sync lasts from arrival to completion.",
    source=_PAGE,
    stability=Stability.STABLE,
)
# A time and not an age: it needs no tick of the agent to stay true.
LAST_PROGRESS = Metric(
    name="lockstep_train_last_progress_timestamp_seconds",
    labels=_RANK_LABELS,
    help="Wall clock at which the rank last entered a phase, its last sign of progress.",
    source=_PAGE,
    stability=Stability.STABLE,
)
RANK_WAITING = Metric(
    name="lockstep_train_rank_waiting",
    labels=_RANK_LABELS,
    help="1 while the rank waits in synchronisation, else 0; 0 too where the others wait for it.",
    source=_PAGE,
)
# A job's words about itself lie here and on no other series; join on cluster, node, job_id.
JOB_INFO = _metric(
    "lockstep_train_job_info",
    "Project, queue and class of the job on this node, always 1.",
    labels.PROJECT,
    labels.QUEUE,
    labels.JOB_CLASS,
)
RANKS = _metric(
    "lockstep_train_ranks",
    "Number of ranks on the node by state; gone is a process that ended without a last phase.",
    labels.STATE,
    source=f"{_PAGE} and /proc",
)
STEP = _metric(
    "lockstep_train_step",
    "Highest step that a rank of the node has completed in the newest attempt.",
)
# Bounds are some 25 % apart where steps of large models lie: a median is known that well.
STEP_SECONDS = _metric(
    "lockstep_train_step_seconds",
    "Seconds of each completed step, over all ranks of the node.",
    buckets=(
        *(0.005, 0.01, 0.02, 0.04, 0.06, 0.08),
        *(0.1, 0.125, 0.16, 0.2, 0.25, 0.32, 0.4, 0.5, 0.65, 0.8),
        *(1.0, 1.3, 1.6, 2.0, 2.6, 3.3, 4.0, 5.0, 6.5, 8.0),
        *(10.0, 13.0, 16.0, 20.0, 40.0, 80.0),
    ),
    stability=Stability.STABLE,
)
TOKENS = _metric(
    "lockstep_train_tokens_total",
    "Tokens that the node's ranks trained on; ranks that read the same batch count once.",
    stability=Stability.STABLE,
)
SAMPLES = _metric(
    "lockstep_train_samples_total",
    "Samples that the node's ranks trained on; ranks that read the same batch count once.",
)
NONFINITE_STEPS = _metric(
    "lockstep_train_nonfinite_steps_total",
    "Steps whose loss or gradient norm was NaN or infinite; sum over the node's ranks.",
    stability=Stability.STABLE,
)
# The lowest rank alone: with data parallelism the ranks' losses are of different batches.
LOSS = _metric(
    "lockstep_train_loss", "Newest training loss of the node's rank with the lowest number."
)
GRADIENT_NORM = _metric(
    "lockstep_train_gradient_norm",
    "Newest gradient norm of the node's rank with the lowest number.",
)
LEARNING_RATE = _metric(
    "lockstep_train_learning_rate",
    "Newest learning rate of the node's rank with the lowest number.",
)
CHECKPOINTS = _metric(
    "lockstep_train_checkpoints_total",
    "Attempts to write a checkpoint by outcome; each counts once per node.",
    labels.OUTCOME,
    stability=Stability.STABLE,
)
LAST_CHECKPOINT = _metric(
    "lockstep_train_last_durable_checkpoint_timestamp_seconds",
    "Wall clock at which the node's newest durable checkpoint was complete.",
)
COLLECTIVES = _metric(
    "lockstep_train_collectives_total",
    "Completed collectives by kind; sum over the node's ranks.",
    labels.KIND,
)
COLLECTIVE_BYTES = _metric(
    "lockstep_train_collective_bytes_total",
    "Bytes passed to collectives by kind; sum over the node's ranks.",
    labels.KIND,
)
COLLECTIVE_SECONDS = _metric(
    "lockstep_train_collective_seconds_total",
    "Seconds from a rank's arrival at a collective to its end; sum over the node's ranks.",
    labels.KIND,
)

RANK_METRICS = (RANK_INFO, STEPS, PHASE_SECONDS, LAST_PROGRESS, RANK_WAITING)

# Three more of each rank that trains asynchronously: it shares parameters, and not every gradient.

EXCHANGE = Label(
    name="exchange",
    help="how ranks share parameters: in rounds of all, or each independent of the others",
    values=("round", "independent"),
)

SYNC_ROUNDS = Metric(
    name="lockstep_train_sync_rounds_total",
    labels=(*_RANK_LABELS, EXCHANGE),
    help="Times that the rank took over shared parameters; absent where each step averages "
    "gradients.",
    source=_PAGE,
)
STALENESS = Metric(
    name="lockstep_train_parameter_staleness_steps",
    labels=_RANK_LABELS,
    help="Updates that the rank's last exchange of parameters found missing: of other ranks, or in "
    "rounds of all its own since the round before.",
    source=_PAGE,
)
LAST_SYNC = Metric(
    name="lockstep_train_last_sync_timestamp_seconds",
    labels=_RANK_LABELS,
    help="Wall clock at which the rank last took over shared parameters: their age is the time "
    "since.",
    source=_PAGE,
)
ASYNCHRONOUS_RANK_METRICS = (SYNC_ROUNDS, STALENESS, LAST_SYNC)

# Metrics of a job's state: goodput, anomalies, memory, checkpoints and replicas. All ranks of a
# node are summed, so that none of these costs a series per rank.


RUN_QUEUE_SECONDS = _metric(
    "lockstep_train_run_queue_wait_seconds_total",
    "Seconds in which training loops were ready to run without a core; sum over the node's ranks.",
    page_field="run_queue_seconds",
)
GOODPUT_SECONDS = _metric(
    "lockstep_train_goodput_seconds_total",
    "Seconds by goodput state, up to each rank's last step; sum over the node's ranks.",
    labels.GOODPUT,
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
    labels.WHERE,
    page_field="nonfinite",
)
ANOMALIES = _metric(
    "lockstep_train_loss_anomalies_total",
    "Spikes and divergences of the loss that began; sum over the node's ranks.",
    labels.ANOMALY,
    page_field="anomalies",
)
ANOMALOUS = _metric(
    "lockstep_train_loss_anomalous_ranks",
    "Ranks of the node whose loss spikes or diverges now.",
    labels.ANOMALY,
)
MEMORY_BYTES = _metric(
    "lockstep_train_memory_bytes",
    "Bytes of memory of the node's rank that uses most.",
    labels.MEMORY,
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
    labels.WRITING,
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
    labels.RANK,
)
RESTORES = _metric(
    "lockstep_train_restores_total",
    "Restores of a checkpoint by outcome; each counts once per node.",
    labels.RESTORE_OUTCOME,
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
    labels.TROUBLE,
    page_field="troubles",
)

# Metrics that the agent derives from a job's pages: hangs, bus bandwidth, device time. They need no
# special launcher. All ranks of a node are summed.

HANG_PHASE = Label(
    name="hang_phase",
    help="phase that the rank is in; gone when its process has ended, unknown without a page",
    values=("init", *labels.STEP_PHASES, "restore", "gone", "unknown"),
)
HANG_EVIDENCE = Label(
    name="hang_evidence",
    help="by what the others wait for the rank: the first evidence that sets it apart",
    values=(
        *("behind_in_steps", "loop_has_ended", "behind_in_collectives", "another_collective"),
        *("stuck_in_collective", "nothing_left_on_device", "process_not_running"),
        *("outside_of_waits", "earlier_in_the_step", "blocked_in_kernel", "alone"),
        *("behind_in_launches_by_ras", "alone_ahead_in_launches_by_ras"),
        *("another_collective_by_ras", "silent_to_ras"),
    ),
)
COMMUNICATOR = Label(
    name="communicator",
    help="hash of the communicator in which they wait; empty where only pages tell of the hang",
)
SEEN_BY = Label(
    name="seen_by",
    help="rank pages of the library or of NCCL's plugin, NCCL's status socket, or its Inspector",
    values=("pages", "plugin", "ras", "inspector"),
)
LAUNCHES = Label(
    name="launches",
    help="what is seen of launches; still and unseen: whether the job moves is unknown",
    values=("hang", "suspect", "moving", "still", "unseen", "starting", "ending", "unasked"),
)

ATTEMPT_NUMBER = _metric(
    "lockstep_train_attempt", "Restarts of the job before its newest attempt on the node, from 0."
)
WORLD_RANKS = _metric(
    "lockstep_train_world_ranks",
    "Ranks of the entire job, as the node's ranks of the newest attempt report it.",
)
HUNG_RANKS = _metric(
    "lockstep_train_hung_ranks",
    "Running ranks of the node without progress for 20 median steps and the time-out.",
    source="rank page and /proc, or NCCL's status socket or Inspector",
)
HANG_FIRST = _metric(
    "lockstep_train_hang_first_seconds",
    "Seconds without progress of the hung rank of the node that stopped first.",
    labels.RANK,
    HANG_PHASE,
    source="rank page and /proc, or NCCL's status socket or Inspector",
)
HANG_MISSING = _metric(
    "lockstep_train_hang_missing_info",
    "Ranks of the node that the others wait for in a hang, always 1; at most eight.",
    labels.RANK,
    HANG_PHASE,
    HANG_EVIDENCE,
    COMMUNICATOR,
    source="rank page and /proc, or NCCL's status socket or Inspector",
)
JOB_SEEN = _metric(
    "lockstep_train_job_seen_info",
    "By what the job is seen on this node, and whether its ranks launch collectives; always 1.",
    SEEN_BY,
    LAUNCHES,
    source="rank page, or NCCL's status socket or Inspector",
)
BUS_BYTES = _metric(
    "lockstep_train_collective_bus_bytes_total",
    "Bytes of collectives on the bus, by the factors of nccl-tests; sum over the node's ranks.",
    labels.KIND,
)
BUS_RATE = _metric(
    "lockstep_train_collective_bus_bytes_per_second",
    "Bus bytes per exposed second of the rank that waited least in the last poll.",
    labels.KIND,
    source="rank page, between two polls",
)
HOST_BOUND_SECONDS = _metric(
    "lockstep_train_host_bound_seconds_total",
    "Seconds in which GPU streams were idle because the host was late, by the host's phase.",
    labels.PHASE,
)
DEVICE_STEPS = _metric(
    "lockstep_train_device_steps_total",
    "Steps timed by the GPU's stream; sum over the node's ranks.",
)
LAUNCH_BOUND_STEPS = _metric(
    "lockstep_train_launch_bound_steps_total",
    "Device-timed steps in which the stream waited for kernel launches for 10 % or more; "
    "sum over the node's ranks.",
)

# A rank has a series here only while it stands out: one a node and quantity, eight out of memory.

MODEL_PART = Label(
    name="part_of_model",
    help="coordinates, beyond dp, of the ranks that hold the same part; all without any",
)
LOAD = Label(
    name="load",
    help="per step: samples, tokens, tokens of the longest sequence, squares of all lengths",
    values=("samples", "tokens", "longest_sequence", "squares"),
)


HEAVIEST_LOAD = _metric(
    "lockstep_train_heaviest_load",
    "Mean load per step of the node's heaviest rank, over its newest 64 steps.",
    labels.RANK,
    LOAD,
)
MEDIAN_LOAD = _metric(
    "lockstep_train_median_load",
    "Median over the node's ranks of the mean load per step, over the newest 64 steps.",
    LOAD,
)
WAIT_CAUSE = Label(
    name="wait_cause",
    help="phase, or what the host took, of which the rank that came last had more",
    values=(
        *labels.OWN_WORK_PHASES,
        *("checkpoint", "eval", "stopped", "collector", "queued", "unknown"),
    ),
)
WAITED_SECONDS = _metric(
    "lockstep_train_waited_seconds_total",
    "Rank-seconds that ranks waited for another one of the node, by cause, whoever it was.",
    WAIT_CAUSE,
)
OUT_OF_MEMORY_RANK = _metric(
    "lockstep_train_rank_out_of_memory_total",
    "Failed allocations per rank, of at most eight ranks of the node that had some.",
    labels.RANK,
)
FINGERPRINT = _metric(
    "lockstep_train_fingerprint",
    "Fingerprint of a part's parameters and gradients on the node; equal on all replicas.",
    MODEL_PART,
)
FINGERPRINT_STEP = _metric(
    "lockstep_train_fingerprint_step",
    "Step at which the node took the fingerprint; only equal steps can be compared.",
    MODEL_PART,
)

# The parts of a rank's monitor, each of which fails by itself, and the ranks that lack one.

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
    labels=(labels.CLUSTER, labels.JOB_ID, labels.NODE, PART),
    help="Ranks of the node whose monitor disabled a part after an error in it; absent at 0.",
    source="rank page",
)
