"""The failure modes that must be found, each with its sign and the deadlines of its alerts."""

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
    "of load makes no page; a GPU that is lost or logs a fatal Xid is TrainJobNodeFault"
)
FAILURES = (
    Failure(
        id="F1",
        what="job crashes on start",
        sign="ranks failed, no step completed; restarts within an hour",
        series=(training.RANKS, training.STEP, training.ATTEMPT_NUMBER),
        deadlines={"TrainJobFailedOnStart": 60, "TrainJobCrashLoop": 60},
        misses={},
    ),
    Failure(
        id="F2",
        what="straggler",
        sign="lateness of a rank or node in its group",
        series=(training.PHASE_SECONDS, recorded.LATENESS_RATIO, recorded.EXCESS),
        deadlines={
            "TrainStragglerRank": 60,
            "TrainStragglerNode": 60,
            "TrainStragglerStage": 60,
            "TrainStragglerRankSlight": 300,
            "TrainStragglerNodeSlight": 300,
        },
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
        deadlines={"TrainPortFault": 60, "TrainPacketsLost": 60, "TrainFabricDegraded": 60},
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
        deadlines={"TrainLossNotFinite": 60, "TrainLossAnomaly": 300},
        misses={},
    ),
    Failure(
        id="F6",
        what="GPU or host out of memory",
        sign="failed allocations of a rank, kills by the kernel",
        series=(training.OUT_OF_MEMORY_RANK, training.OUT_OF_MEMORY, host.JOB_MEMORY_EVENTS),
        deadlines={"TrainRankOutOfMemory": 60, "TrainOutOfMemoryLoop": 60},
        misses={},
    ),
    Failure(
        id="F7",
        what="preemption",
        sign="counted, not notified",
        series=(ledger.PREEMPTIONS, ledger.PREEMPTION_LOST),
        deadlines={},
        misses={},
    ),
    Failure(
        id="F8",
        what="resource contention",
        sign="pressure and throttling of a job on a node that harm it",
        series=(
            host.JOB_PRESSURE_SECONDS,
            host.JOB_THROTTLED_SECONDS,
            training.RUN_QUEUE_SECONDS,
        ),
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
        deadlines={"TrainDataSkew": 300},
        misses={},
    ),
    Failure(
        id="F11",
        what="hang",
        sign="no progress for 20 median steps, and 120 s at least",
        series=(training.HANG_FIRST, training.HANG_MISSING, training.LAST_PROGRESS),
        deadlines={"TrainJobStalled": 150},
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
            "TrainJobNodeFault": 60,
            "TrainJobNodeLost": 60,
            "TrainJobGpuDegraded": 60,
            "TrainReplicasDiffer": 60,
        },
        misses={"TrainJobGpuDegraded": _HELD},
    ),
)
