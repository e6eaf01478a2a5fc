"""Metrics of a training job: at most twelve series per rank, the others summed by the agent."""

from lockstep_catalogue.labels import (
    ATTEMPT,
    CLOCK,
    CLUSTER,
    JOB_CLASS,
    JOB_ID,
    KIND,
    LOCAL_RANK,
    MESH,
    NODE,
    OUTCOME,
    PHASE,
    PROJECT,
    QUEUE,
    RANK,
    STATE,
    UUID,
    WORLD_SIZE,
)
from lockstep_catalogue.metric import Metric, Stability

_OF_RANK = (CLUSTER, JOB_ID, RANK)
_OF_NODE = (CLUSTER, JOB_ID, NODE)
_PAGE = "rank page"

# Identity lies in one info series: as labels of each series it would multiply them by every job.
RANK_INFO = Metric(
    name="lockstep_train_rank_info",
    labels=(
        *_OF_RANK,
        PROJECT,
        NODE,
        LOCAL_RANK,
        WORLD_SIZE,
        ATTEMPT,
        UUID,
        CLOCK,
        *MESH,
    ),
    help="Identity of a rank in its newest attempt, always 1; join on cluster, job_id, rank.",
    source=_PAGE,
    stability=Stability.STABLE,
)
STEPS = Metric(
    name="lockstep_train_steps_total",
    labels=_OF_RANK,
    help="Optimizer steps that the rank has completed, over all attempts.",
    source=_PAGE,
    stability=Stability.STABLE,
)
PHASE_SECONDS = Metric(
    name="lockstep_train_phase_seconds_total",
    labels=(*_OF_RANK, PHASE),
    help="Seconds of the rank's completed steps by phase; sync lasts from arrival to completion.",
    source=_PAGE,
    stability=Stability.STABLE,
)
# A time and not an age: it needs no tick of the agent to stay true.
LAST_PROGRESS = Metric(
    name="lockstep_train_last_progress_timestamp_seconds",
    labels=_OF_RANK,
    help="Wall clock at which the rank last entered a phase, its last sign of progress.",
    source=_PAGE,
    stability=Stability.STABLE,
)
RANK_WAITING = Metric(
    name="lockstep_train_rank_waiting",
    labels=_OF_RANK,
    help="1 while the rank waits in synchronisation, else 0; in a hang the culprit has 0.",
    source=_PAGE,
)
# A job's words about itself lie here and on no other series; join on cluster, node, job_id.
JOB_INFO = Metric(
    name="lockstep_train_job_info",
    labels=(*_OF_NODE, PROJECT, QUEUE, JOB_CLASS),
    help="Project, queue and class of the job on this node, always 1.",
    source=_PAGE,
)
RANKS = Metric(
    name="lockstep_train_ranks",
    labels=(*_OF_NODE, STATE),
    help="Number of ranks on the node by state; gone is a process that ended without a last phase.",
    source=f"{_PAGE} and /proc",
)
STEP = Metric(
    name="lockstep_train_step",
    labels=_OF_NODE,
    help="Highest step that a rank of the node has completed in the newest attempt.",
    source=_PAGE,
)
# Bounds are some 25 % apart where steps of large models lie: a median is known that well.
STEP_SECONDS = Metric(
    name="lockstep_train_step_seconds",
    labels=_OF_NODE,
    help="Seconds of each completed step, over all ranks of the node.",
    source=_PAGE,
    buckets=(
        0.005,
        0.01,
        0.02,
        0.04,
        0.06,
        0.08,
        0.1,
        0.125,
        0.16,
        0.2,
        0.25,
        0.32,
        0.4,
        0.5,
        0.65,
        0.8,
        1.0,
        1.3,
        1.6,
        2.0,
        2.6,
        3.3,
        4.0,
        5.0,
        6.5,
        8.0,
        10.0,
        13.0,
        16.0,
        20.0,
        40.0,
        80.0,
    ),
    stability=Stability.STABLE,
)
TOKENS = Metric(
    name="lockstep_train_tokens_total",
    labels=_OF_NODE,
    help="Tokens that the node's ranks trained on; ranks that read the same batch count once.",
    source=_PAGE,
    stability=Stability.STABLE,
)
SAMPLES = Metric(
    name="lockstep_train_samples_total",
    labels=_OF_NODE,
    help="Samples that the node's ranks trained on; ranks that read the same batch count once.",
    source=_PAGE,
)
NONFINITE_STEPS = Metric(
    name="lockstep_train_nonfinite_steps_total",
    labels=_OF_NODE,
    help="Steps whose loss or gradient norm was NaN or infinite; sum over the node's ranks.",
    source=_PAGE,
    stability=Stability.STABLE,
)
# The lowest rank alone: with data parallelism the ranks' losses are of different batches.
LOSS = Metric(
    name="lockstep_train_loss",
    labels=_OF_NODE,
    help="Newest training loss of the node's rank with the lowest number.",
    source=_PAGE,
)
GRADIENT_NORM = Metric(
    name="lockstep_train_gradient_norm",
    labels=_OF_NODE,
    help="Newest gradient norm of the node's rank with the lowest number.",
    source=_PAGE,
)
LEARNING_RATE = Metric(
    name="lockstep_train_learning_rate",
    labels=_OF_NODE,
    help="Newest learning rate of the node's rank with the lowest number.",
    source=_PAGE,
)
CHECKPOINTS = Metric(
    name="lockstep_train_checkpoints_total",
    labels=(*_OF_NODE, OUTCOME),
    help="Attempts to write a checkpoint by outcome; each counts once per node.",
    source=_PAGE,
    stability=Stability.STABLE,
)
LAST_CHECKPOINT = Metric(
    name="lockstep_train_last_durable_checkpoint_timestamp_seconds",
    labels=_OF_NODE,
    help="Wall clock at which the node's newest durable checkpoint was complete.",
    source=_PAGE,
)
COLLECTIVES = Metric(
    name="lockstep_train_collectives_total",
    labels=(*_OF_NODE, KIND),
    help="Completed collectives by kind; sum over the node's ranks.",
    source=_PAGE,
)
COLLECTIVE_BYTES = Metric(
    name="lockstep_train_collective_bytes_total",
    labels=(*_OF_NODE, KIND),
    help="Bytes passed to collectives by kind; sum over the node's ranks.",
    source=_PAGE,
)
COLLECTIVE_SECONDS = Metric(
    name="lockstep_train_collective_seconds_total",
    labels=(*_OF_NODE, KIND),
    help="Seconds from a rank's arrival at a collective to its end; sum over the node's ranks.",
    source=_PAGE,
)

RANK_METRICS = (RANK_INFO, STEPS, PHASE_SECONDS, LAST_PROGRESS, RANK_WAITING)
