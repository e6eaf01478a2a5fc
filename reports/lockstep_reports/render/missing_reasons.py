"""What a report leaves out, and why: every null of the JSON has its reason here."""

from lockstep_reports.incident import LogReport
from lockstep_reports.report import Report

_NO_LEDGER = "no ledger was asked: its room does not exist yet"
_NO_PRICE = "no price was told; give --price-per-gpu-hour"
_NOT_BY_LOG = "a log does not record it"
_OF_KIND = {
    "step_series": "one series stands for the whole job; ranks cannot be told apart in it",
    "worker_times": "only the duration of each step was recorded for each worker",
    "kineto": "a profiler trace shows collectives, not the phases of a step",
    "flight_recorder": "a flight recorder keeps the last collectives, no steps",
    "prometheus": "series hold sums over many steps and no time of arrival",
}


def untold(report: Report | LogReport) -> dict[str, str]:
    """Reason by name of the field that is null, in the order of the JSON."""
    if isinstance(report, LogReport):
        return _of_log(report)
    reasons = {
        "steps.median_seconds": _no_steps(report),
        "steps.p95_seconds": _no_tail(report),
        "startup_seconds": "no sign of a rank before its first step was recorded",
        "seconds_after_last_progress": "nothing was recorded after the last mark of a rank",
        "wall_seconds": "no first and last sign of the ranks were recorded",
        "lost_money": _NO_PRICE,
        "goodput.ratio": why_no_phases(report) or "no time is covered by steps",
        "alignment.residual_seconds": why_no_arrivals(report),
        "collectives": "collectives were not recorded one by one",
        "what_if": why_no_replay(report),
    }
    known = {
        "steps.median_seconds": report.summary.median_seconds,
        "steps.p95_seconds": report.summary.p95_seconds,
        "startup_seconds": report.times.startup_seconds,
        "seconds_after_last_progress": report.times.seconds_after_last_progress,
        "wall_seconds": report.times.wall_seconds,
        "lost_money": report.cost.lost_money,
        "goodput.ratio": report.goodput.ratio,
        "alignment.residual_seconds": report.alignment.residual_seconds,
        "collectives": report.collectives,
        "what_if": None if report.replayed is None else report.replayed.what_if,
    }
    told = {name: why for name, why in reasons.items() if why and known[name] is None}
    return {**told, "slo": _NO_LEDGER}


def _of_log(report: LogReport) -> dict[str, str]:
    incident = report.incident
    known = {
        "world_size": (report.log.world_size, "no line tells the number of ranks"),
        "verdict.phase": (None, _NOT_BY_LOG),
        "verdict.confidence": (None, "lines are judged by rules and not by chance"),
        "steps.median_seconds": (report.summary.median_seconds, "no line tells a step time"),
        "startup_seconds": (incident.startup_seconds, "no line tells when training began"),
        "run_seconds": (incident.run_seconds, "no line tells when training began or ended"),
        "wall_seconds": (incident.wall_seconds, "no line tells a time"),
        "seconds_after_last_progress": (
            incident.seconds_after_last_progress,
            "no line with a time tells of progress",
        ),
        "collectives": (None, _NOT_BY_LOG),
        "what_if": (None, _NOT_BY_LOG),
        "alignment": (None, _NOT_BY_LOG),
        "slo": (None, _NO_LEDGER),
    }
    return {name: why for name, (value, why) in known.items() if value is None}


def _no_steps(report: Report) -> str:
    return _OF_KIND.get(report.source_kind, "no steps were recorded")


def _no_tail(report: Report) -> str:
    if report.steps.stands_for is not None:
        return "means over many steps tell no tail, and no counts by duration stand beside them"
    return _no_steps(report)


def why_no_phases(report: Report) -> str | None:
    """Why nothing is said of the phases of a step; None when something is."""
    if any(line.own_work_seconds or line.sync_seconds for line in report.ranks):
        return None
    return _OF_KIND.get(report.source_kind, "the recording does not tell the phases of a step")


def why_no_arrivals(report: Report) -> str | None:
    """Why nothing is said of arrivals at the synchronisation; None when something is."""
    if any(line.lag_seconds is not None for line in report.ranks):
        return None
    if report.replayed is not None:
        return "operations tell their own starts, not arrivals at one synchronisation"
    return _OF_KIND.get(report.source_kind, "no rank told when it arrived at a collective")


def why_no_replay(report: Report) -> str | None:
    """Why there is no what-if answer; None when there is."""
    if report.replayed is None:
        return "no operation rows were recorded"
    return report.replayed.why_not
