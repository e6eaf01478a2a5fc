"""The measures that must be covered, each with the series that show it."""

from dataclasses import dataclass

from lockstep_catalogue import Metric, Recorded, fabric, gpu, ledger, recorded, training


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
        series=(
            gpu.GPU_SM_ACTIVE,
            gpu.GPU_TENSOR_ACTIVE,
            gpu.GPU_UTILIZATION,
            recorded.MFU,
        ),
        also=("GpuAllocatedIdle",),
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
        also=("TrainCheckpointInvalid", "TrainCheckpointFailed", "TrainCheckpointStale"),
    ),
    Measure(
        id="M8",
        what="network throughput against line rate",
        target="slices at 0.8 of the job's best hour",
        series=(
            fabric.PORT_BYTES,
            fabric.PORT_RATE,
            fabric.NET_BYTES,
            training.BUS_RATE,
        ),
        also=("TrainPortFault", "TrainPacketsLost", "TrainFabricDegraded"),
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
        also=("TrainCheckpointInvalid", "TrainResumeOldCheckpoint"),
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
        also=("TrainLossNotFinite", "TrainLossAnomaly"),
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
        series=(
            ledger.GPU_SECONDS,
            recorded.GOODPUT_BY_STATE,
            recorded.STRAGGLER_WAIT,
        ),
        also=("TrainDataStarved",),
    ),
    Measure(
        id="M15",
        what="requeue rate",
        target="below 5 % of the attempts",
        series=(ledger.REQUEUES, ledger.ATTEMPTS_STARTED),
        also=("TrainJobCrashLoop",),
    ),
)
