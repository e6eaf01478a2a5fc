"""The JSON of a report by field: docs/formats/report.schema.json follows from these dataclasses."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, TypeVar

import numpy as np

from lockstep_catalogue import vocabulary
from lockstep_outcomes.joblogs.model import Line
from lockstep_reports.analysis.compare import Change
from lockstep_reports.analysis.cost import SECONDS_PER_HOUR, Cause
from lockstep_reports.analysis.ends import Standstill
from lockstep_reports.analysis.signs import Sign
from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.analysis.summary import Ending, RankSummary, StepSummary
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.align import Clocks
from lockstep_reports.recording.recording import Attempt, Collective
from lockstep_reports.verdict.losses import Loss
from lockstep_reports.verdict.verdict import EpisodeRecord, Verdict
from lockstep_reports.whatif.analysis import Explanation, WhatIf

_MAX_REPLICAS_BY_STEP = 256
_MAX_NAMED_RANKS = 8
_RATIOS = (
    "slowdown", "waste_ratio", "launch_slowdown", "simulation_error_ratio", "m_w", "m_s",
)  # fmt: skip

_FACTORS = {
    "micro_batch_correlation": "correlation",
    "micro_batch_spread_ratio": "spread",
    "levelled_batches_removed_ratio": "batches",
    "levelled_stages_removed_ratio": "stages",
    "levelled_ranks_removed_ratio": "ranks",
}


@dataclass(frozen=True, kw_only=True)
class Repair:
    """What some ranks cost, and what their repair would save.

    Attributes:
        removed_ratio: share of the slowdown that vanishes when these ranks are ideal.
        added_ratio: share of the slowdown that they cause while all others are ideal.
    """

    ranks: tuple[int, ...]
    removed_ratio: float | None
    added_ratio: float | None
    seconds_without: float
    seconds_alone: float
    saved_seconds_per_step: float
    saved_step_ratio: float | None
    saved_seconds: float
    saved_gpu_seconds: float
    saved_money: float | None


@dataclass(frozen=True, kw_only=True)
class WhatIfFigures:
    """Result of a replay with other durations; slowdowns are ratios to the ideal step."""

    slowdown: float | None
    waste_ratio: float | None
    launch_slowdown: float | None
    simulation_error_ratio: float | None
    m_w: float | None
    m_s: float | None
    seconds: float
    ideal_seconds: float
    by_op_type: Mapping[str, float]
    by_worker: Mapping[str, float]
    by_replica: Mapping[str, float]
    by_stage: Mapping[str, float]
    by_step: Mapping[str, Mapping[str, float]]
    by_op_type_per_step: Mapping[str, Mapping[str, float]]
    by_replica_per_step: Mapping[str, Mapping[str, float]]
    by_stage_per_step: Mapping[str, Mapping[str, float]]
    worst_workers: Repair
    stages: Mapping[str, Repair]
    micro_batch_correlation: float | None
    micro_batch_spread_ratio: float | None
    levelled_batches_removed_ratio: float | None
    levelled_stages_removed_ratio: float | None
    levelled_ranks_removed_ratio: float | None
    negative_transfers: int
    worst_negative_seconds: float | None
    notes: tuple[str, ...]


def describe_replay(what_if: WhatIf, analysis: StepAnalysis) -> WhatIfFigures:
    """The answers by name; keys are names, ranks, stages and steps as text."""
    grid, ideal = what_if.model.grid, what_if.ideal_seconds
    steps = [str(step) for step in grid.steps.tolist()]
    ranks, slowdowns = grid.rank.ravel().tolist(), what_if.worker_slowdown.ravel().tolist()
    replicas = _name_rows(what_if.by_replica, grid.replicas)
    stages = _name_rows(what_if.by_stage)
    first_replicas = dict(list(replicas.items())[:_MAX_REPLICAS_BY_STEP])

    repair = partial(_describe_repair, analysis, len(ideal))
    return WhatIfFigures(
        **{name: getattr(what_if, name) for name in _RATIOS},
        seconds=float(what_if.seconds.mean()),
        ideal_seconds=float(ideal.mean()),
        by_op_type=_divide(what_if.by_type, ideal),
        by_worker={str(rank): value for rank, value in sorted(zip(ranks, slowdowns, strict=True))},
        by_replica=_divide(replicas, ideal),
        by_stage=_divide(stages, ideal),
        by_step=_list_steps(what_if, steps),
        by_op_type_per_step=_divide_per_step(what_if.by_type, ideal, steps),
        by_replica_per_step=_divide_per_step(first_replicas, ideal, steps),
        by_stage_per_step=_divide_per_step(stages, ideal, steps),
        worst_workers=repair(what_if.worst),
        stages={str(n): repair(explanation) for n, explanation in enumerate(what_if.stages)},
        **{name: getattr(what_if.factors, field) for name, field in _FACTORS.items()},
        negative_transfers=what_if.model.negative_transfers,
        worst_negative_seconds=what_if.model.worst_negative_seconds,
        notes=grid.notes,
    )


def _list_steps(what_if: WhatIf, steps: list[str]) -> dict[str, dict[str, float]]:
    matrices = (what_if.recorded_seconds, what_if.seconds, what_if.ideal_seconds)
    columns = (values.tolist() for values in matrices)
    return {
        step: {
            "recorded_seconds": recorded,
            "seconds": seconds,
            "ideal_seconds": ideal,
            "slowdown": seconds / ideal,
            "launch_slowdown": recorded / seconds,
        }
        for step, recorded, seconds, ideal in zip(steps, *columns, strict=True)
    }


def name_ranks(what_if: WhatIf, ranks: tuple[int, ...]) -> str:
    """What a repair would replace: a stage, or ranks by number."""
    rank = what_if.model.grid.rank
    for stage in range(len(rank)):
        if len(rank) > 1 and sorted(rank[stage].ravel().tolist()) == list(ranks):
            return f"stage {stage}"
    more = f", ... ({len(ranks):,} ranks)" if len(ranks) > _MAX_NAMED_RANKS else ""
    return f"rank {', '.join(map(str, ranks[:_MAX_NAMED_RANKS]))}{more}"


def _name_rows(values: Matrix, numbers: Integers | None = None) -> dict[str, Matrix]:
    """Rows [n, steps] by their numbers as text; numbers None counts from 0."""
    keys = range(len(values)) if numbers is None else numbers.tolist()
    return {str(number): row for number, row in zip(keys, values, strict=True)}


def _divide(seconds: Mapping[str, Matrix], ideal: Matrix) -> dict[str, float]:
    """Slowdowns by name; all matrices are seconds [steps]."""
    return {name: float(values.mean() / ideal.mean()) for name, values in seconds.items()}


def _divide_per_step(
    seconds: Mapping[str, Matrix], ideal: Matrix, steps: list[str]
) -> dict[str, dict[str, float]]:
    ratios = {name: (values / ideal).tolist() for name, values in seconds.items()}
    return {
        step: {name: values[column] for name, values in ratios.items()}
        for column, step in enumerate(steps)
    }


def _describe_repair(analysis: StepAnalysis, num_steps: int, explanation: Explanation) -> Repair:
    saved, price = explanation.seconds - explanation.without_seconds, analysis.price_per_gpu_hour
    # All ranks of the job wait for the slow ones.
    gpu_seconds = saved * num_steps * analysis.steps.world_size
    return Repair(
        ranks=explanation.ranks,
        removed_ratio=explanation.removed,
        added_ratio=explanation.added,
        seconds_without=explanation.without_seconds,
        seconds_alone=explanation.only_seconds,
        saved_seconds_per_step=saved,
        saved_step_ratio=saved / explanation.seconds if explanation.seconds > 0 else None,
        saved_seconds=saved * num_steps,
        saved_gpu_seconds=gpu_seconds,
        saved_money=None if price is None else gpu_seconds * price / SECONDS_PER_HOUR,
    )


SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Source:
    """What the report was made from.

    Attributes:
        kind: name of the reader, such as pages, operations, log.
    """

    kind: str


@dataclass(frozen=True, kw_only=True)
class LogSource(Source):
    """The log that the report was made from, with its numbers of files and lines."""

    files: int
    lines: int


@dataclass(frozen=True, kw_only=True)
class SlowStretch:
    """A stretch of steps that was slow; a log names nobody for it.

    Attributes:
        lost_seconds: wall time that the job lost.
    """

    start_step: int
    end_step: int
    ranks: tuple[int, ...]
    lost_seconds: float


@dataclass(frozen=True, kw_only=True)
class SlowEpisode(EpisodeRecord):
    """A stretch of steps in which some ranks kept all others waiting, with its cost.

    Attributes:
        lost_seconds: wall time that the job lost.
        lost_ratio: loss as a share of the duration of its steps.
    """

    lost_seconds: float
    start_time: float | None
    end_time: float | None
    lost_ratio: float | None


@dataclass(frozen=True, kw_only=True)
class LostTime(Loss):
    """A part of the lost time with its price; the parts sum to what the report calls lost."""

    lost_gpu_seconds: float
    lost_money: float | None


@dataclass(frozen=True, kw_only=True)
class JobGoodput:
    """Where the allocated time of a whole job went, over all its attempts."""

    attempts: int
    elapsed_seconds: float | None
    allocated_gpu_seconds: float | None
    productive_ratio: float | None
    ettr_ratio: float | None
    gpu_seconds: Mapping[vocabulary.GoodputState, float]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Comparison of the report with another one."""

    against: str
    verdict_changed: bool
    verdict_before: Verdict
    changes: tuple[Change, ...]
    figures: Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What every report holds; an unknown value is null, and ``unknown`` has the reason.

    Attributes:
        headline: the most severe finding about the job, one sentence.
        severity: what the headline is about.
        first_sign: wall clock, seconds since the epoch.
        goodput: seconds by state, unknown among them; ratio: the productive share.
        unknown: why a field is null, by its name.
    """

    schema: int = SCHEMA_VERSION
    headline: str
    severity: vocabulary.Severity
    world_size: int | None
    outcome: vocabulary.OutcomeOrRunning
    verdict: Verdict
    steps: StepSummary
    startup_seconds: float | None
    run_seconds: float | None
    wall_seconds: float | None
    seconds_after_last_progress: float | None
    first_sign: float | None
    last_progress: float | None
    last_sign: float | None
    lost_seconds: float | None
    goodput: Mapping[str, float | None]
    collectives: tuple[Collective, ...] | None = None
    what_if: WhatIfFigures | None = None
    alignment: Clocks | None = None
    slo: None = None
    comparison: Compared | None = None
    notes: tuple[str, ...]
    unknown: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class StepsReport(Report):
    """A report on recorded steps.

    Attributes:
        attempts: the attempts that the report is not about.
        first_step: start of the first step, as ``first_sign``.
        ranks_over: first and last step that ``ranks`` covers.
    """

    source: Source
    job_id: str
    cluster: str
    project: str
    attempt: int
    attempts: tuple[Attempt, ...]
    missing_ranks: tuple[int, ...]
    episodes: tuple[SlowEpisode, ...]
    losses: tuple[LostTime, ...]
    standstills: tuple[Standstill, ...]
    signs: tuple[Sign, ...]
    ranks: tuple[RankSummary, ...]
    ranks_over: tuple[int | None, ...]
    endings: tuple[Ending, ...]
    first_step: float | None
    lost_ratio: float | None
    lost_gpu_seconds: float | None
    lost_money: float | None
    price_per_gpu_hour: float | None
    causes: tuple[Cause, ...]
    job_goodput: JobGoodput | None


@dataclass(frozen=True, kw_only=True)
class LogReport(Report):
    """A report on the log of a job.

    Attributes:
        reason: the verdict on the end in a sentence.
        events: the first line of each finding.
    """

    source: LogSource
    episodes: tuple[SlowStretch, ...]
    failure_class: vocabulary.FailureClass | None
    reason: str
    events: tuple[Line, ...]
    first_cause: Line | None


AnyReport = TypeVar("AnyReport", StepsReport, LogReport)
_NO_LEDGER = "no ledger was asked: lockstep ledger has the objectives of jobs"
_LOG_REASON = "a log does not record it"
_NO_STEPS = "no steps were recorded"
# A kind that records neither phases nor arrivals has one reason for all it lacks.
_REASON_BY_KIND = {
    "step_series": "one series represents the job; ranks cannot be told apart in it",
    "worker_times": "only the duration of each step was recorded for each worker",
    "kineto": "a profiler trace shows collectives, not the phases of a step",
    "inspector_means": "the Inspector's Prometheus text holds means, no steps and no ranks",
    "ras": "NCCL's status socket counts launches of collectives, no steps",
    "inspector": "the Inspector records operations of NCCL, not the phases of a step",
    "flight_recorder": "a flight recorder keeps the last collectives, no steps",
    "prometheus": "series hold sums over many steps and no time of arrival",
}


LOG_REASONS = {
    "world_size": "no line has the number of ranks",
    "verdict.phase": _LOG_REASON,
    "verdict.confidence": "lines are judged by rules and not by chance",
    "steps.median_seconds": "no line has a step time",
    "startup_seconds": "no line shows when training began",
    "run_seconds": "no line shows when training began or ended",
    "wall_seconds": "no line has a time",
    "seconds_after_last_progress": "no line with a time shows progress",
    "collectives": _LOG_REASON,
    "what_if": _LOG_REASON,
    "alignment": _LOG_REASON,
    "slo": _NO_LEDGER,
}
"""Why a field of a report on a log is null, by its dotted name in the JSON."""


def step_reasons(analysis: StepAnalysis) -> dict[str, str | None]:
    """The same for a report on steps; None where nothing more is to be said."""
    return {
        "steps.median_seconds": _lack(analysis, _NO_STEPS),
        "steps.p95_seconds": _why_no_tail(analysis),
        "startup_seconds": "no sign of a rank before its first step was recorded",
        "seconds_after_last_progress": "nothing was recorded after the last progress of a rank",
        "wall_seconds": "no first and last sign of the ranks were recorded",
        "lost_money": "neither a rate card nor the job states one price; give --rates or"
        " --price-per-gpu-hour",
        "goodput.ratio": why_no_phases(analysis) or "no time is covered by steps",
        "job_goodput": "no launcher reported where the time of the job went",
        "alignment.residual_seconds": why_no_arrivals(analysis),
        "collectives": "collectives were not recorded one by one",
        "what_if": "no operation rows were recorded"
        if analysis.replayed is None
        else analysis.replayed.why_not,
        "slo": _NO_LEDGER,
    }


def with_reasons(report: AnyReport, reasons: Mapping[str, str | None]) -> AnyReport:
    """The report with the reasons of those fields that are null in it."""
    unknown = {
        name: reason
        for name, reason in reasons.items()
        if reason and reduce(_read_field, name.split("."), report) is None
    }
    return replace(report, unknown=unknown)


def _read_field(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, Mapping) else getattr(value, name)


def _lack(analysis: StepAnalysis, default: str) -> str:
    return _REASON_BY_KIND.get(analysis.recording.source_kind, default)


def _why_no_tail(analysis: StepAnalysis) -> str:
    if analysis.steps.steps_per_column is not None:
        return "means over many steps hide the tail, and no counts by duration were recorded"
    return _lack(analysis, _NO_STEPS)


def why_no_phases(analysis: StepAnalysis) -> str | None:
    """Why a report has no phases of a step; None when it has them."""
    if any(rank.own_work_seconds or rank.sync_seconds for rank in analysis.ranks):
        return None
    return _lack(analysis, "the recording does not tell the phases of a step")


def why_no_arrivals(analysis: StepAnalysis) -> str | None:
    """Why a report has no arrivals at the synchronisation; None when it has them."""
    if any(rank.lag_seconds is not None for rank in analysis.ranks):
        return None
    # A replay has arrivals at every operation, so no single one represents the step.
    if analysis.replayed is not None:
        return "operations record their own starts, not arrivals at one synchronisation"
    return _lack(analysis, "no rank recorded an arrival at a collective")


def heat_map_quantity(analysis: StepAnalysis) -> str:
    """What the heat map shows: ``lateness``, ``own`` times beyond their median, or ``nothing``."""
    several = len(analysis.steps.members) > 1 and len(analysis.steps.numbers) > 1
    if several and not np.isnan(analysis.scores.waits).all():
        return "lateness"
    return "own" if several and not np.isnan(analysis.steps.seconds).all() else "nothing"
