"""Measures and failure modes that must be covered, each with the series that show it."""

from dataclasses import dataclass

from lockstep_catalogue import (
    Metric,
    Recorded,
    fabric,
    gpu,
    host,
    incidents,
    ledger,
    recorded,
    training,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """A figure that people look at and promise.

    Attributes:
        also: alerts beyond those of its objectives and those that name it in the spec.
    """

    id: str
    what: str
    target: str
    series: tuple[Metric | Recorded, ...]
    also: tuple[str, ...] = ()


MEASURES = (
    Measure(
        id="M1",
        what="job success rate",
        target="95 % over 28 days",
        series=(ledger.JOBS_FINISHED, ledger.SLO_EVENTS),
    ),
    Measure(
        id="M2",
        what="time to complete",
        target="deadline met by 90 %",
        series=(ledger.DEADLINES, ledger.JOB_DURATION, ledger.QUEUE_WAIT, ledger.JOB_DEADLINE),
    ),
    Measure(
        id="M3",
        what="throughput",
        target="95 % of slices at 0.9 of the baseline",
        series=(training.TOKENS, training.SAMPLES, recorded.TOKENS_RATE),
    ),
    Measure(
        id="M4",
        what="GPU utilisation",
        target="above 80 %, sustained",
        series=(gpu.GPU_SM_ACTIVE, gpu.GPU_TENSOR_ACTIVE, gpu.GPU_UTILIZATION, recorded.MFU),
        also=("TrainGpusIdle",),
    ),
    Measure(
        id="M5",
        what="step latency",
        target="95th percentile within twice the median",
        series=(training.STEP_SECONDS, recorded.STEP_MEAN),
    ),
    Measure(
        id="M6",
        what="checkpoint latency",
        target="blocking below 60 s",
        series=(training.CHECKPOINT_SECONDS, training.SLOWEST_WRITER),
    ),
    Measure(
        id="M7",
        what="checkpoint success",
        target="99 % durable",
        series=(training.CHECKPOINTS, training.CHECKPOINTS_VERIFIED, training.LAST_CHECKPOINT),
        also=("TrainCheckpointInvalid", "TrainCheckpointFailed", "WorkAtRisk"),
    ),
    Measure(
        id="M8",
        what="network throughput against line rate",
        target="slices at 0.8 of the job's best hour",
        series=(fabric.PORT_BYTES, fabric.PORT_RATE, fabric.NET_BYTES, training.BUS_RATE),
        also=("TrainPortFault", "TrainPacketsLost", "ClusterLosing"),
    ),
    Measure(
        id="M9",
        what="gradient synchronisation, exposed",
        target="below 10 % of the step",
        series=(training.COLLECTIVE_SECONDS, training.GOODPUT_SECONDS),
        also=("TrainPacketsLost",),
    ),
    Measure(
        id="M10",
        what="preemptions",
        target="lose less than 2 % of the time",
        series=(ledger.PREEMPTIONS, ledger.PREEMPTION_LOST),
    ),
    Measure(
        id="M11",
        what="resume success",
        target="99 % from the newest checkpoint",
        series=(ledger.RESUMES, training.RESTORES),
        also=("TrainCheckpointInvalid",),
    ),
    Measure(
        id="M12",
        what="loss convergence",
        target="no step without a finite loss",
        series=(
            training.LOSS,
            training.GRADIENT_NORM,
            training.NONFINITE_STEPS,
            training.ANOMALIES,
            training.ANOMALOUS,
        ),
        also=("TrainLossBad",),
    ),
    Measure(
        id="M13",
        what="cost per epoch and per million tokens",
        target="as the project budgets it",
        series=(ledger.COST, ledger.GPU_SECONDS),
    ),
    Measure(
        id="M14",
        what="waste by cause",
        target="90 % of the time moves the job on",
        series=(ledger.GPU_SECONDS, recorded.GOODPUT_BY_STATE, recorded.STRAGGLER_WAIT),
        also=("TrainDataStarved",),
    ),
    Measure(
        id="M15",
        what="requeue rate",
        target="below 5 % of the attempts",
        series=(ledger.REQUEUES, ledger.ATTEMPTS_STARTED),
        also=("TrainJobFailing",),
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A way in which training fails.

    Attributes:
        deadlines: seconds at scrapes of 5 s from the fault to each notification that must be.
        misses: why a deadline is not met, by alert.
    """

    id: str
    what: str
    sign: str
    series: tuple[Metric | Recorded, ...]
    deadlines: dict[str, int]
    misses: dict[str, str]


_HELD = (
    "the agent holds this sign before it is a verdict: clocks 60 s, links 30 s, so that a change "
    "of load makes no page; a GPU that is lost or logs a fatal Xid is TrainNodeFault"
)
FAILURES = (
    Failure(
        id="F1",
        what="job crashes on start",
        sign="ranks failed, no step completed; restarts within an hour",
        series=(training.RANKS, training.STEP, training.ATTEMPT_NUMBER),
        deadlines={"TrainJobFailing": 60},
        misses={},
    ),
    Failure(
        id="F2",
        what="straggler",
        sign="lateness of a rank or node in its group",
        series=(training.PHASE_SECONDS, recorded.LATENESS_RATIO, recorded.EXCESS),
        deadlines={"JobLosing": 60, "TrainStraggler": 300},
        misses={},
    ),
    Failure(
        id="F3",
        what="network time-outs, packet loss, saturation",
        sign="verdict on a port; packets sent again while ranks wait",
        series=(
            fabric.PORT_HEALTH,
            host.JOB_TCP_RETRANSMITS,
            fabric.RDMA_RETRIES_EXCEEDED,
            fabric.RDMA_LOSSES,
        ),
        deadlines={"TrainPortFault": 60, "TrainPacketsLost": 60, "ClusterLosing": 60},
        misses={},
    ),
    Failure(
        id="F4",
        what="corrupt or partial checkpoint",
        sign="a checkpoint is invalid, a write fails, a restore falls back",
        series=(training.CHECKPOINTS, training.RESTORES, training.LAST_CHECKPOINT),
        deadlines={"TrainCheckpointInvalid": 60, "TrainCheckpointFailed": 60},
        misses={},
    ),
    Failure(
        id="F5",
        what="diverging loss, NaN",
        sign="steps without a finite loss; spikes and divergences",
        series=(training.NONFINITE_STEPS, training.ANOMALIES, training.ANOMALOUS),
        deadlines={"TrainLossBad": 60},
        misses={},
    ),
    Failure(
        id="F6",
        what="GPU or host out of memory",
        sign="failed allocations of a rank, kills by the kernel",
        series=(training.OUT_OF_MEMORY_RANK, training.OUT_OF_MEMORY, host.JOB_MEMORY_EVENTS),
        deadlines={"TrainOutOfMemory": 60},
        misses={},
    ),
    Failure(
        id="F7",
        what="preemption",
        sign="counted, not notified",
        series=(ledger.PREEMPTIONS, ledger.SLO_EVENTS),
        deadlines={},
        misses={},
    ),
    Failure(
        id="F8",
        what="resource contention",
        sign="pressure and throttling of a job on a node that harm it",
        series=(host.JOB_PRESSURE_SECONDS, host.JOB_THROTTLED_SECONDS, training.RUN_QUEUE_SECONDS),
        deadlines={"TrainContention": 300},
        misses={},
    ),
    Failure(
        id="F9",
        what="wrong topology",
        sign="ranks disagree on the size of the job, or are more or fewer",
        series=(training.WORLD_RANKS, training.RANKS, training.RANK_INFO),
        deadlines={"TrainTopologyWrong": 60},
        misses={},
    ),
    Failure(
        id="F10",
        what="data skew",
        sign="one rank has more samples, tokens or squared lengths",
        series=(training.HEAVIEST_LOAD, training.MEDIAN_LOAD),
        deadlines={"TrainWorkloadUneven": 300},
        misses={},
    ),
    Failure(
        id="F11",
        what="hang",
        sign="no progress for 20 median steps, and 120 s at least",
        series=(training.HANG_FIRST, training.HANG_MISSING, training.LAST_PROGRESS),
        deadlines={"JobNotProgressing": 150},
        misses={},
    ),
    Failure(
        id="F12",
        what="GPU fault, and silent corruption",
        sign="Xid, lost GPU, throttled clocks, links; fingerprints that differ",
        series=(
            incidents.GPU_HEALTH,
            incidents.GPU_XID_LAST,
            gpu.GPU_THROTTLE_SECONDS,
            gpu.NVLINK_LINKS,
            fabric.PCIE_RATIO,
            training.ODD_REPLICAS,
        ),
        deadlines={
            "TrainNodeFault": 60,
            "TrainNodeLost": 60,
            "TrainGpuDegraded": 60,
            "TrainReplicasDiffer": 60,
        },
        misses={"TrainGpuDegraded": _HELD},
    ),
)
