"""Series of jobs: ranks, steps, phases, losses, checkpoints, as their agents serve them.

The ranks of a group end each step together: what one works longer, the others wait.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from lockstep_catalogue import METRICS, Endpoint, Kind, Metric, metrics_of, training
from lockstep_catalogue.labels import GOODPUT, KIND, STATE
from lockstep_catalogue.vocabulary import PHASE_STATES

from .cluster import CLUSTER_NAME, EXTRA, GPUS, LATE_PHASE, Cluster, Flags, Job, Values
from .node_series import target, uuid_of
from .remote_write import Samples

_SHARES = {"data": 0.03, "forward": 0.25, "backward": 0.45, "optimizer": 0.05, "other": 0.01,
           "checkpoint": 0.01, "eval": 0.005}  # fmt: skip
_UNEVEN = frozenset({"forward", "backward"})
_CHECKPOINT_SECONDS = 120
_EACH_FAILED = 4  # one in four checkpoints fails
_STEP_TOKENS = 8192.0


class JobCourse:
    """What a job does at each scrape; rates are per second of time.

    Attributes:
        step_seconds: mean duration of a step.
        steps: steps completed.
        hung: whether it stands.
    """

    def __init__(self, job: Job, cluster: Cluster) -> None:
        self.job, self.cluster = job, cluster
        times, late = cluster.times, cluster.is_later
        self.hung = late & job.hangs
        slow = late & (job.slow_rank is not None)
        self.step_seconds = job.step_seconds * np.where(slow, 1 + EXTRA, 1.0)
        self.since_start = times - times[0]
        self.steps = self.total(np.where(self.hung, 0.0, 1 / self.step_seconds))

    def total(self, rate: Values) -> Values:
        """A counter that grows at a rate; the rate at a scrape is that of the time before it."""
        return np.cumsum(np.concatenate(([0.0], rate[1:] * np.diff(self.cluster.times))))

    def phase_seconds(self, rank: int) -> dict[str, Values]:
        """Seconds of the rank's step in each phase, at each scrape."""
        base = self.job.step_seconds
        # Ranks of one job differ by a percent; the last of each group waits for nobody.
        jitter = 1 + 0.01 * ((rank * 7919) % 97) / 97
        seconds = {
            phase: np.full_like(
                self.step_seconds, share * base * (jitter if phase in _UNEVEN else 1)
            )
            for phase, share in _SHARES.items()
        }
        if rank == self.job.slow_rank:
            seconds[LATE_PHASE] = seconds[LATE_PHASE] + (self.step_seconds - base)
        own = sum(seconds.values(), np.zeros_like(self.step_seconds))
        return seconds | {"sync": self.step_seconds - own}


def job_series(cluster: Cluster) -> Iterator[Samples]:
    """All series of the jobs."""
    for job in cluster.jobs:
        course = JobCourse(job, cluster)
        for node in job.nodes:
            yield from _sample_ranks(course, node)
            yield from _sample_node(course, node)


def _sample(metric: Metric, course: JobCourse, node: str, values: Values, **more: str) -> Samples:
    labels = {"cluster": CLUSTER_NAME, "node": node, "job_id": course.job.job_id, **target(node)}
    suffix = more.pop("suffix", "")
    return Samples({"__name__": metric.name + suffix} | labels | more, values)


def _sample_ranks(course: JobCourse, node: str) -> Iterator[Samples]:
    job, cluster = course.job, course.cluster
    for local_rank, rank in enumerate(job.ranks_of(node)):
        of_rank = {"rank": str(rank)}
        identity = {
            "project": job.project, "local_rank": str(local_rank), "clock": "device",
            "world_size": str(job.world_size), "uuid": uuid_of(node, local_rank),
            "pp": job.stage_of(rank), "dp": str(rank),
        }  # fmt: skip
        for attempt, lives in _attempts(course):
            values = np.where(lives, 1.0, np.nan)
            yield _sample(
                training.RANK_INFO, course, node, values, attempt=attempt, **of_rank, **identity
            )
        yield _sample(training.STEPS, course, node, np.floor(course.steps), **of_rank)
        for phase, seconds in course.phase_seconds(rank).items():
            total = course.total(np.where(course.hung, 0.0, seconds / course.step_seconds))
            yield _sample(training.PHASE_SECONDS, course, node, total, **of_rank, phase=phase)
        progress = np.where(course.hung, cluster.halfway, cluster.times)
        yield _sample(training.LAST_PROGRESS, course, node, progress, **of_rank)
        waits = course.hung & (rank != 0)
        yield _sample(training.RANK_WAITING, course, node, waits.astype(float), **of_rank)


def _attempts(course: JobCourse) -> list[tuple[str, Flags]]:
    late = course.cluster.is_later
    if not course.job.restarts:
        return [("0", np.ones_like(late, dtype=np.bool_))]
    return [("0", ~late), ("1", late)]


def _sample_node(course: JobCourse, node: str) -> Iterator[Samples]:
    job, cluster = course.job, course.cluster
    ones, zeros = np.ones_like(cluster.times), np.zeros_like(cluster.times)
    info = {"project": job.project, "queue": job.queue, "class": job.job_class}
    yield _sample(training.JOB_INFO, course, node, ones, **info)
    for state in STATE.values:
        ranks = GPUS * ones if state == "training" else zeros
        yield _sample(training.RANKS, course, node, ranks, state=state)
    yield _sample(training.STEP, course, node, np.floor(course.steps))
    yield from _histogram(training.STEP_SECONDS, course, node, course.step_seconds, course.steps)
    yield from _goodput(course, node)
    yield from _learning(course, node)
    yield from _checkpoints(course, node)
    yield from _collectives(course, node)
    yield from _watch(course, node)


def _histogram(
    metric: Metric, course: JobCourse, node: str, seconds: Values, events: Values, **more: str
) -> Iterator[Samples]:
    """Nine in ten events last about the mean, one in ten half as long again."""
    count = np.floor(events * GPUS)
    long_seconds = 1.5 * seconds
    for bound in (*metric.buckets, np.inf):
        below = 0.9 * (seconds <= bound) + 0.1 * (long_seconds <= bound)
        grown = np.cumsum(np.diff(count, prepend=0.0) * below)
        le = "+Inf" if bound == np.inf else f"{bound:g}"
        yield _sample(metric, course, node, grown, le=le, suffix="_bucket", **more)
    total = np.cumsum(np.diff(count, prepend=0.0) * seconds * 1.05)
    yield _sample(metric, course, node, total, suffix="_sum", **more)
    yield _sample(metric, course, node, count, suffix="_count", **more)


def _goodput(course: JobCourse, node: str) -> Iterator[Samples]:
    """The states of the eight ranks; together they are the wall clock."""
    rates = {state: np.zeros_like(course.step_seconds) for state in GOODPUT.values}
    for rank in course.job.ranks_of(node):
        for phase, seconds in course.phase_seconds(rank).items():
            rates[PHASE_STATES[phase]] += np.where(course.hung, 0.0, seconds / course.step_seconds)
    rates["hang"] += np.where(course.hung, float(GPUS), 0.0)
    for state, rate in rates.items():
        yield _sample(training.GOODPUT_SECONDS, course, node, course.total(rate), goodput=state)


def _learning(course: JobCourse, node: str) -> Iterator[Samples]:
    is_bad = course.cluster.is_later & course.job.diverges
    progress = course.steps / max(course.steps[-1], 1)
    per_step = course.steps * GPUS
    curves = {
        training.LOSS: 4.0 - 1.5 * progress + 3.0 * is_bad,
        training.GRADIENT_NORM: 1.0 - 0.3 * progress + 20.0 * is_bad,
        training.LEARNING_RATE: 3e-4 * (1 - 0.1 * progress),
        training.TOKENS: per_step * _STEP_TOKENS,
        training.SAMPLES: per_step * 4,
        training.MODEL_FLOPS: per_step * 4e14,
        training.PEAK_FLOPS: np.full_like(progress, GPUS * 9.89e14),
        training.NONFINITE_STEPS: np.cumsum(is_bad) * 1.0,
    }
    for metric, values in curves.items():
        yield _sample(metric, course, node, values)


def _checkpoints(course: JobCourse, node: str) -> Iterator[Samples]:
    number = np.floor(course.since_start / _CHECKPOINT_SECONDS)
    failed = np.floor(number / _EACH_FAILED)
    newest = number - (number > 0) * (number % _EACH_FAILED == 0)
    written = course.cluster.times[0] + newest * _CHECKPOINT_SECONDS
    yield _sample(training.LAST_CHECKPOINT, course, node, written)
    for outcome, count in (("ok", number - failed), ("failed", failed), ("invalid", failed * 0)):
        yield _sample(training.CHECKPOINTS, course, node, count, outcome=outcome)
    for writing, seconds in (("blocking", 1.5), ("persisting", 20.0)):
        yield from _histogram(
            training.CHECKPOINT_SECONDS, course, node, seconds + 0 * number,
            number / GPUS, writing=writing,
        )  # fmt: skip
    first = str(course.job.ranks_of(node)[0])
    slowest = 22.5 + 0 * number
    yield _sample(training.SLOWEST_WRITER, course, node, slowest, rank=first)
    yield _sample(training.CHECKPOINT_BYTES, course, node, number * GPUS * 2e9)
    yield _sample(training.CHECKPOINTS_VERIFIED, course, node, number - failed)


def _collectives(course: JobCourse, node: str) -> Iterator[Samples]:
    ranks = course.job.ranks_of(node)
    waits = [course.phase_seconds(rank)["sync"] for rank in ranks]
    sync: Values = sum(waits, np.zeros_like(course.steps)) / len(ranks)
    per_kind = course.steps * GPUS * 16
    waited = course.total(np.where(course.hung, 0.0, sync / course.step_seconds)) * GPUS
    for index, kind in enumerate(KIND.values, start=1):
        of_kind = {"kind": kind}
        yield _sample(training.COLLECTIVES, course, node, per_kind / index, **of_kind)
        yield _sample(training.COLLECTIVE_BYTES, course, node, per_kind / index * 2e9, **of_kind)
        part = waited / len(KIND.values)
        yield _sample(training.COLLECTIVE_SECONDS, course, node, part, **of_kind)
        rate = 3e11 / index + 0 * sync
        yield _sample(training.BUS_BYTES, course, node, per_kind / index * 3e9, **of_kind)
        yield _sample(training.BUS_RATE, course, node, rate, **of_kind)


def _watch(course: JobCourse, node: str) -> Iterator[Samples]:
    """Everything else of the job: quiet, but on the jobs that hang or diverge."""
    job, cluster = course.job, course.cluster
    first = str(job.ranks_of(node)[0])
    if job.hangs:
        first_hung = {"rank": first, "hang_phase": "backward"}
        num_hung: Values = np.where(course.hung, float(GPUS), 0.0)
        yield _sample(training.HUNG_RANKS, course, node, num_hung)
        missing: Values = np.where(course.hung, 1.0, np.nan)
        since = missing * (cluster.times - cluster.halfway)
        yield _sample(training.HANG_FIRST, course, node, since, **first_hung)
        because = {training.HANG_EVIDENCE.name: "outside_of_waits"}
        yield _sample(training.HANG_MISSING, course, node, missing, **first_hung, **because)
    else:
        yield _sample(training.HUNG_RANKS, course, node, 0.0 * cluster.times)
    restarts: Values = np.where(cluster.is_later & job.restarts, 1.0, 0.0)
    yield _sample(training.ATTEMPT_NUMBER, course, node, restarts)
    yield _sample(training.WORLD_RANKS, course, node, job.world_size + 0 * restarts)
    is_bad = cluster.is_later & job.diverges
    for metric in _OTHERS:
        yield from _quiet(metric, course, node, is_bad)


_DONE = (
    training.GOODPUT_SECONDS, training.MODEL_FLOPS, training.PEAK_FLOPS,
    training.CHECKPOINT_SECONDS, training.SLOWEST_WRITER, training.CHECKPOINT_BYTES,
    training.CHECKPOINTS_VERIFIED, training.HUNG_RANKS, training.HANG_FIRST,
    training.HANG_MISSING, training.BUS_BYTES, training.BUS_RATE,
    training.ATTEMPT_NUMBER, training.WORLD_RANKS,
    *METRICS[: METRICS.index(training.COLLECTIVE_SECONDS) + 1],
)  # fmt: skip
_DONE_NAMES = {metric.name for metric in _DONE}
_OTHERS = [
    metric
    for metric in metrics_of(Endpoint.AGENT)
    if metric.name.split("_")[1] == "train" and metric.name not in _DONE_NAMES
]
_TYPICAL: dict[Metric, float] = {
    training.MEMORY_BYTES: 6e10,
    training.REPLICAS: GPUS,
    training.HEAVIEST_LOAD: 4096,
    training.MEDIAN_LOAD: 4000,
    training.FINGERPRINT: 1.5e15,
    training.FINGERPRINT_STEP: 100,
    training.STALENESS: 5,
}
_TYPICAL_RATES: dict[Metric, float] = {
    training.COLLECTIONS: 0.1,
    training.COLLECTION_SECONDS: 0.001,
    training.MEASURED_STEPS: 0.5,
    training.MEASURED_SECONDS: 0.0005,
    training.HOST_BOUND_SECONDS: 0.01,
    training.DEVICE_STEPS: 0.5 * GPUS,
    training.LAUNCH_BOUND_STEPS: 0.01,
    training.SYNC_ROUNDS: 0.1,
}


def _quiet(metric: Metric, course: JobCourse, node: str, is_bad: Flags) -> Iterator[Samples]:
    rank = str(course.job.ranks_of(node)[0])
    # The jobs meet in rounds: a job of independent exchanges has no lateness.
    fixed = {"rank": rank, "part_of_model": "pp=0", "part": "memory"}
    chosen = {"exchange": ("round",)}
    free = [label for label in metric.labels if label.name not in {"cluster", "node", "job_id"}]
    [*choices] = [
        chosen.get(label.name) or label.values or (fixed[label.name],) for label in free
    ] or [("",)]
    for values in product(*choices):
        labels = dict(zip((label.name for label in free), values, strict=False))
        if metric in _TYPICAL:
            curve = _TYPICAL[metric] + 0 * course.since_start
        elif metric in _TYPICAL_RATES:
            curve = _TYPICAL_RATES[metric] * course.since_start
        elif metric is training.LAST_SYNC:
            curve = course.cluster.times
        elif metric.kind is Kind.COUNTER:
            curve = np.floor(np.cumsum(is_bad) / 4)
        else:
            curve = is_bad.astype(np.float64)
        yield _sample(metric, course, node, curve, **labels)
