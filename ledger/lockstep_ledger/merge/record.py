"""The record of one job, as readers get it; it is saved as JSON with the job's row."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, get_args

import msgspec

from lockstep_ledger.merge.allocation import Steps, held, pieces
from lockstep_outcomes.prices.price import Price, PricedJob, Pricing
from lockstep_outcomes.progress.goodput import (
    PROGRESS_STATES,
    GoodputSample,
    best_interval_seconds,
    expected_ettr,
    failures_per_node_day,
    recent_ettr,
)

SILENT_SECONDS = 7 * 86_400.0
"""Without any word on it, after which nobody may say that a run goes on; feeds say so each day."""

Status = Literal["pending", "running", "ended", "finished"]
"""``ended``: some nodes or all have ended, and the outcome may still change."""
STATUSES: tuple[Status, ...] = get_args(Status)


class RunRecord(msgspec.Struct):
    """One run of a job.

    Attributes:
        end, outcome: None while it goes on.
        end_time: the latest end that was stated, else the last event.
        heard: newest word on it, up to which its GPU time counts while it goes on.
        is_estimated: whether its GPU time ends with that word, since nobody stated an end.
        requeued_after: why it was needed; empty of the first.
        allocation: its GPUs by model as a step function of time; without a 0 at last it goes on.
        used_gpu_seconds: by launchers, beside what ``allocation`` says where a scheduler grants it.
        states: its GPU-seconds by goodput state.
    """

    begin: float
    end: float | None
    end_time: float
    has_start: bool
    nodes: int
    gpus: float
    attempts: list[float]
    outcome: str | None
    failure_class: str | None
    cause: str | None
    requeued_after: str
    is_preempted: bool
    lost_gpu_seconds: float
    states: dict[str, float]
    heard: float = 0.0
    allocation: Steps = {}
    used_gpu_seconds: float | None = None
    costs: dict[str, float] = {}
    is_estimated: bool = False

    @property
    def explained_states(self) -> dict[str, float]:
        """Its states, without what a later report may explain of a run that goes on."""
        may_change = self.end is None and self.nodes
        return {s: v for s, v in self.states.items() if not may_change or s != "unknown"}

    def count_until(self, now: float) -> float:
        """Up to which second its GPU time counts for who reads it at a moment."""
        if self.end is not None:
            return math.inf
        return math.floor(self.heard if self.is_silent(now) else now)

    def is_silent(self, now: float) -> bool:
        """Whether it goes on by its last word alone, and that is too old to be believed."""
        return self.end is None and now - self.heard > SILENT_SECONDS


class Record(msgspec.Struct):
    """What became of a job: a function of the set of its events.

    Attributes:
        expected_nodes: how many nodes the job has by its own word; None where nobody says.
        price_per_gpu_hour, currency: as the job declares them; ``costs`` are by currency, at the
            prices of the rate card of this digest, or at the declared one.
        voucher: scheduler, token or nobody, for project, user and GPUs.
        machines, machine_gpus: nodes of the newest run, and their GPUs.
        settle_at: ledger's wall clock at which the outcome is settled with what is there.
        disagreements: source, field and value of words that do not hold, and the value that does.
        held_seconds: before its first start, in which its owner did not let it start.
    """

    cluster: str
    job_id: str
    number: int
    owner: int | None
    ids: list[str]
    project: str = ""
    queue: str = ""
    job_class: str = ""
    user: str = ""
    voucher: str = ""
    name: str = ""
    world_size: int | None = None
    gpu_model: str = ""
    expected_nodes: int | None = None
    gpus: float | None = None
    price_per_gpu_hour: float | None = None
    currency: str = ""
    deadline: float | None = None
    declared_tokens: float | None = None
    status: Status = "pending"
    outcome: str | None = None
    failure_class: str | None = None
    cause: str | None = None
    reason: str | None = None
    cause_rank: int | None = None
    cause_node: str | None = None
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    updated: float = 0.0
    queue_wait_seconds: float | None = None
    held_seconds: float = 0.0
    run_number: int = 0
    run_begin: float | None = None
    machines: int = 0
    machine_gpus: float = 0.0
    attempts: int = 0
    requeues: int = 0
    preemptions: int = 0
    resumes: int = 0
    checkpoints: int = 0
    checkpoint_counts: dict[str, int] = {}
    last_checkpoint: float | None = None
    last_checkpoint_step: int | None = None
    gpu_seconds: float = 0.0
    lost_gpu_seconds: float = 0.0
    costs: dict[str, float] = {}
    rate_card: str = ""
    goodput: dict[str, float] = {}
    settle_at: float | None = None
    silent_nodes: list[str] = []
    disagreements: list[tuple[str, str, Any, Any]] = []
    runs: list[RunRecord] = []

    @property
    def counted(self) -> bool:
        """Whether the counters hold its end."""
        return self.status == "finished"

    @property
    def group(self) -> tuple[str, str, str, str]:
        """Label values by which it is counted."""
        return self.cluster, self.queue, self.project, self.job_class


def priced_job(record: Record, gpu_model: str) -> PricedJob:
    """What the price of a job depends on, for its GPUs of one model."""
    price = record.price_per_gpu_hour
    declared = None if price is None else Price(price, record.currency)
    return PricedJob(record.project, gpu_model, declared)


def sum_runs(record: Record) -> None:
    """Fills in what its runs sum to."""
    runs, goodput = record.runs, dict[str, float]()
    for run in runs:
        for state, seconds in run.states.items():
            goodput[state] = goodput.get(state, 0.0) + seconds
    record.goodput = {state: seconds for state, seconds in goodput.items() if seconds}
    record.gpu_seconds = sum(record.goodput.values())
    record.run_number = sum(run.has_start for run in runs)
    record.attempts = sum(len(run.attempts) for run in runs)
    record.requeues = sum(bool(run.requeued_after) for run in runs)
    record.preemptions = sum(run.is_preempted for run in runs)
    record.lost_gpu_seconds = sum(run.lost_gpu_seconds for run in runs)


def split_at(record: Record, moments: Sequence[float]) -> Iterator[Record]:
    """The record as it stood at each of some moments by then ended, with its runs since the last.

    A run that was preempted by then waited for the next one, and had not ended.
    """
    first = 0
    for moment in moments:
        number = sum(run.begin < moment for run in record.runs)
        run = record.runs[number - 1] if number > first else None
        is_last = number == len(record.runs)
        if run is None or run.outcome is None or run.end_time >= moment:
            continue
        if (is_last and record.status != "finished") or (not is_last and run.is_preempted):
            continue
        part = msgspec.structs.replace(record, runs=record.runs[first:number])
        if not is_last:
            part.outcome, part.failure_class, part.cause = run.outcome, run.failure_class, run.cause
            part.cause_node, part.cause_rank, part.reason = None, None, None
            part.ended = run.end_time
        sum_runs(part)
        sum_costs(part)
        first = number
        yield part


def read_at(record: Record, now: float, pricing: Pricing) -> None:
    """Lets GPU time and costs of a run that goes on count up to a moment."""
    for run in record.runs[-1:]:
        run.is_estimated |= run.is_silent(now)
        until = run.count_until(now)
        grown = held(run.allocation, until) - sum(run.states.values())
        if run.end is None and grown > 0:
            run.states["unknown"] = run.states.get("unknown", 0.0) + grown
            run.heard = until
            sum_runs(record)
            price(record, pricing)


def price(record: Record, pricing: Pricing) -> None:
    """Fills in what the GPU time of all runs costs; of one that goes on up to its newest word."""
    record.rate_card = pricing.digest
    for run in record.runs:
        costs: dict[str, float] = {}
        until = math.inf if run.end is not None else math.floor(run.heard)
        for model, begin, end, gpus in pieces(run.allocation, until):
            seconds = (end - begin) * gpus
            amounts = pricing.costs(priced_job(record, model), begin, end, seconds)
            for currency, amount in amounts.items():
                costs[currency] = costs.get(currency, 0.0) + amount
        run.costs = costs
    sum_costs(record)


def sum_costs(record: Record) -> None:
    """Fills in what its runs cost, by currency."""
    record.costs = {}
    for run in record.runs:
        for currency, amount in run.costs.items():
            record.costs[currency] = record.costs.get(currency, 0.0) + amount


record_of_json = msgspec.json.Decoder(Record).decode
"""The record that the store holds."""


_RESTART_STATES = ("recovery", "startup", "restore")


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruptions:
    """What one or several jobs measured of failures and checkpoints; times are wall clock.

    Attributes:
        node_seconds: of all nodes together.
        num_failures: attempts that ended before the job did, other than by its owner.
        restart_seconds: from starts to first steps, of all attempts together.
        save_seconds: for which checkpoints stopped the steps, together.
        training_seconds: between checkpoints, together.
    """

    num_nodes: float = 0.0
    node_seconds: float = 0.0
    num_attempts: float = 0.0
    num_failures: float = 0.0
    num_checkpoints: float = 0.0
    restart_seconds: float = 0.0
    save_seconds: float = 0.0
    training_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What the measured failures and checkpoints let a job expect; None is not measured."""

    failures_per_node_day: float | None = None
    interval_seconds: float | None = None
    save_seconds: float | None = None
    restart_seconds: float | None = None
    expected_ettr_ratio: float | None = None
    best_interval_seconds: float | None = None
    best_ettr_ratio: float | None = None


def interruptions_of(record: Record) -> Interruptions:
    """What the record of one job measured; zeros where no GPU time is reported."""
    goodput = record.goodput
    num_nodes = float(record.expected_nodes or record.machines)
    # The record has GPU-seconds; over the GPUs of the whole job they are wall clock.
    gpus = record.gpus or record.machine_gpus
    if not gpus or not num_nodes:
        return Interruptions()
    ended_badly = record.outcome in {"failed", "preempted", "unknown"}
    is_of_cluster = ended_badly and record.failure_class != "user"
    return Interruptions(
        num_nodes=num_nodes,
        node_seconds=math.fsum(goodput.values()) / gpus * num_nodes,
        num_attempts=record.attempts,
        num_failures=max(0, record.attempts - 1) + is_of_cluster,
        num_checkpoints=record.checkpoints,
        restart_seconds=math.fsum(goodput.get(s, 0.0) for s in _RESTART_STATES) / gpus,
        save_seconds=goodput.get("checkpoint", 0.0) / gpus,
        training_seconds=math.fsum(goodput.get(s, 0.0) for s in PROGRESS_STATES) / gpus,
    )


def sum_interruptions(measured: Iterable[Interruptions]) -> Interruptions:
    """Those of several jobs; the number of nodes is the mean, weighted by their time."""
    jobs = [job for job in measured if job.node_seconds > 0]
    seconds = math.fsum(job.node_seconds for job in jobs)
    weighted = math.fsum(job.num_nodes * job.node_seconds for job in jobs)
    names = (field.name for field in fields(Interruptions))
    sums = {name: math.fsum(getattr(job, name) for job in jobs) for name in names}
    return Interruptions(**sums | {"num_nodes": weighted / seconds if seconds else 0.0})


def expectation(measured: Interruptions) -> Expectation:
    """Expected ETTR and the best checkpoint interval (lockstep_outcomes/progress/ettr.py)."""
    rate = failures_per_node_day(measured.num_failures, measured.node_seconds)
    if rate is None or not measured.num_checkpoints or not measured.num_attempts:
        return Expectation(failures_per_node_day=rate)
    interval = measured.training_seconds / measured.num_checkpoints
    save = measured.save_seconds / measured.num_checkpoints
    restart = measured.restart_seconds / measured.num_attempts
    if interval <= 0:
        return Expectation(failures_per_node_day=rate)
    job: dict[str, float] = {
        "num_nodes": measured.num_nodes, "failures_per_node_day": rate, "save_seconds": save,
    }  # fmt: skip
    expected = partial(expected_ettr, **job, restart_seconds=restart)
    best = best_interval_seconds(**job)
    return Expectation(
        failures_per_node_day=rate,
        interval_seconds=interval,
        save_seconds=save,
        restart_seconds=restart,
        expected_ettr_ratio=expected(interval_seconds=interval),
        best_interval_seconds=best,
        best_ettr_ratio=None if best is None else expected(interval_seconds=best),
    )


def last_hour_ettr(timeline: Sequence[Mapping[str, Any]]) -> float | None:
    """ETTR of the hour before the newest report of goodput, by the events of the job.

    Totals are of ranks; shares are the same as of GPUs as long as all nodes have equally many.
    """
    totals: dict[tuple[str, int], tuple[float, float]] = {}
    samples = []
    for event in timeline:
        seconds = event["fields"].get("rank_seconds") if event["kind"] == "goodput" else None
        if not isinstance(seconds, dict):
            continue
        moving = math.fsum(seconds.get(state, 0.0) for state in PROGRESS_STATES)
        totals[event["node"], event["attempt"]] = (moving, math.fsum(seconds.values()))
        productive, allocated = (math.fsum(part) for part in zip(*totals.values(), strict=True))
        samples.append(GoodputSample(event["time"], productive, allocated))
    return recent_ettr(samples)
