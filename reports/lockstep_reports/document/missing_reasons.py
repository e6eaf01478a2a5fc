"""Reasons of the nulls in the JSON of a report: every one stands here."""

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.document.published import LogReport, StepsReport

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
    """What the kind of source lacks, or else the default."""
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
    if several and not np.isnan(analysis.scores.lateness).all():
        return "lateness"
    return "own" if several and not np.isnan(analysis.steps.seconds).all() else "nothing"
