"""Builds the document on a log from its analysis: the end, the first lines, the step times."""

import math
from functools import partial

import numpy as np

from lockstep_catalogue.palette import STATE_COLOURS
from lockstep_catalogue.vocabulary import Severity
from lockstep_outcomes.joblogs.outcome import Incident
from lockstep_outcomes.progress.missing import rank_words
from lockstep_reports.analysis.logs import LogAnalysis
from lockstep_reports.analysis.summary import loss_sentence
from lockstep_reports.document import model
from lockstep_reports.document.advice import log_advice
from lockstep_reports.document.headline import SEVERITY_BY_CAUSE
from lockstep_reports.document.published import (
    LOG_REASONS,
    LogReport,
    LogSource,
    SlowStretch,
    with_reasons,
)
from lockstep_reports.document.timeline import log_trace_events
from lockstep_reports.wording import clock, duration, list_ranks, plural

_COPIED = (
    "outcome", "failure_class", "reason", "startup_seconds", "run_seconds", "wall_seconds",
    "seconds_after_last_progress",
)  # fmt: skip
_MAX_POINTS, _WIDTH, _HEIGHT = 800, 1000.0, 160.0
_STATE_COLOURS = {
    "startup": STATE_COLOURS["startup"],
    "run": STATE_COLOURS["productive"],
    "after_last_progress": STATE_COLOURS["hang"],
    "unknown": STATE_COLOURS["unknown"],
}
_HEADLINE_BY_OUTCOME: dict[str, tuple[Severity, str]] = {
    "succeeded": ("nobody", "The job succeeded"),
    "running": ("nobody", "The job is running"),
    "failed": ("failed", "The job failed"),
    "cancelled": ("stopped", "The job was cancelled"),
    "preempted": ("stopped", "The job was preempted"),
    "time_limit": ("stopped", "The job ran into its time limit"),
    "not_converged": ("stopped", "The job did not converge"),
    "unknown": ("unknown", "The log does not tell how the job ended"),
}


def _log_severity(incident: Incident) -> Severity:
    by_outcome = _HEADLINE_BY_OUTCOME[incident.outcome][0]
    # A log may show a job that stood still, whatever became of it.
    is_by_cause = by_outcome == "failed" or incident.cause == "hang"
    return SEVERITY_BY_CAUSE.get(incident.cause, by_outcome) if is_by_cause else by_outcome


def _log_headline(incident: Incident) -> str:
    if incident.cause == "hang":
        return _hang_words(incident)
    outcome = _HEADLINE_BY_OUTCOME[incident.outcome][1]
    if incident.blame == "rank":
        return f"{outcome}: rank {list_ranks(incident.ranks)} was the first cause."
    if incident.blame == "group":
        return f"{outcome}: node {incident.group} was the first cause."
    # A cancelled or finished job has nobody to blame, so only a failure is explained.
    if incident.outcome == "failed":
        causes = {"workload": "the workload's own fault", "nobody": "no rank is to blame"}
        return f"{outcome}: {causes.get(incident.blame, 'which rank began it cannot be told')}."
    return f"{outcome}."


def _hang_words(incident: Incident) -> str:
    reason = incident.reason
    ranks = f"; {rank_words(incident.ranks)} did not come" if incident.ranks else ""
    begin = reason.removeprefix("It hung")
    if begin == reason:
        return f"The job hung{ranks}: {reason}"
    return f"The job hung{begin.rstrip('.')}{ranks}."


def _explain_end(incident: Incident) -> str:
    # Of a hang the headline is the reason itself.
    parts = [] if incident.cause == "hang" else [incident.reason]
    if incident.seconds_after_last_progress is not None and incident.wall_seconds is not None:
        parts.append(
            f"{duration(incident.seconds_after_last_progress)} of "
            f"{duration(incident.wall_seconds)} passed after the last progress."
        )
    return " ".join(parts)


def document_log(analysis: LogAnalysis) -> model.Document:
    """The document."""
    log, incident = analysis.log, analysis.incident
    facts = [plural(log.lines, "line")]
    facts += [] if log.first_sign is None else [f"first sign {clock(log.first_sign)} UTC"]
    facts.append(f"outcome {incident.outcome.replace('_', ' ')}")
    facts += [f"failure class {incident.failure_class}"] if incident.failure_class else []
    published = _publish(analysis)
    return model.Document(
        name=analysis.path.name,
        headline=published.headline,
        severity=published.severity,
        story=_explain_end(incident),
        facts=tuple(facts),
        cards=_log_cards(analysis),
        sections=_log_sections(analysis),
        advice=log_advice(analysis),
        remarks=analysis.notes,
        published=published,
        durations={"step": np.array(log.step_seconds, dtype=np.float64)},
        key_figures={"seconds_after_last_progress": incident.seconds_after_last_progress},
        trace_events=partial(log_trace_events, analysis),
    )


def _log_cards(analysis: LogAnalysis) -> tuple[model.Card, ...]:
    incident, summary, log = analysis.incident, analysis.summary, analysis.log
    spans = (
        (incident.startup_seconds, "start-up", "first sign to start of training"),
        (incident.run_seconds, "run", "start of training to its end"),
        (incident.wall_seconds, "wall clock", "first to last sign of the ranks"),
        (incident.seconds_after_last_progress, "after the last progress", ""),
        (summary.median_seconds, "median step", plural(summary.count, "recorded time")),
    )
    cards = [model.Card(duration(span), *words) for span, *words in spans if span is not None]
    if log.world_size:
        cards.append(model.Card(f"{log.world_size:,}", "ranks", plural(log.lines, "line")))
    return tuple(cards)


def _log_sections(analysis: LogAnalysis) -> tuple[model.Section, ...]:
    summary, log, first = analysis.summary, analysis.log, analysis.incident.first
    sections = []
    if shares := _share_wall_clock(analysis.incident):
        sections.append(
            model.Section(title="Where the wall clock went", blocks=(model.Shares(shares),))
        )
    table = model.Table(("when (UTC)", "where", "rank", "what", "line"), _list_lines(analysis), 5)
    hint = "The first line of each kind, in the order of the log."
    hint += " Highlighted: the first cause." if first else ""
    sections.append(
        model.Section(
            title="What the log shows",
            hint=hint,
            blocks=(table if table.rows else ("Nothing beyond ordinary output.",),),
        )
    )
    blocks: list[model.Block] = []
    if len(log.step_seconds) > 1:
        draw = partial(_draw_step_times, analysis)
        blocks = [model.Figure("step_times", draw, by_plotly=False)]
    if summary.losses:
        blocks.append(tuple(map(loss_sentence, summary.losses)))
    if blocks:
        hint = (
            f"{summary.count:,} recorded times; median {duration(summary.median_seconds)}, drawn"
            " from zero, cut off at three times the median."
        )
        sections.append(model.Section(title="Step time", hint=hint, blocks=tuple(blocks)))
    return tuple(sections)


def _list_lines(analysis: LogAnalysis) -> tuple[model.Row, ...]:
    return tuple(
        model.Row(
            (
                "" if line.time is None else clock(line.time),
                f"{line.file}:{line.number}",
                "" if line.rank is None else str(line.rank),
                line.kind.replace("_", " "),
                line.text,
            ),
            is_marked=line == analysis.incident.first,
        )
        for line in analysis.first_lines
    )


def _share_wall_clock(incident: Incident) -> tuple[model.Share, ...]:
    wall = incident.wall_seconds
    return tuple(
        model.Share(state.replace("_", " "), _STATE_COLOURS[state], seconds, seconds / wall)
        for state, seconds in _sum_wall_clock(incident).items()
        if wall and seconds and state != "ratio"
    )


def _draw_step_times(analysis: LogAnalysis) -> str:
    seconds = analysis.log.step_seconds
    size = -(-len(seconds) // _MAX_POINTS)
    # The highest of each bin and not the mean: a single slow step must stay visible.
    tops = [max(seconds[begin : begin + size]) for begin in range(0, len(seconds), size)]
    ordered = sorted(seconds)
    median = ordered[len(ordered) // 2]
    # A pause is cut off at three medians, and an even curve keeps air above it.
    ceiling = max(1.5 * median, min(ordered[-1], 3 * median)) or 1.0
    spacing = _WIDTH / max(1, len(tops) - 1)
    points = " ".join(
        f"{index * spacing:.1f},{_HEIGHT * (1 - min(1.0, top / ceiling)):.1f}"
        for index, top in enumerate(tops)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" class="line" preserveAspectRatio="none"'
        f' role="img" aria-label="step times"><polyline points="{points}" fill="none"'
        ' stroke="currentColor" stroke-width="1.4" vector-effect="non-scaling-stroke"/></svg>'
    )


def _publish(analysis: LogAnalysis) -> LogReport:
    incident, log, lost = analysis.incident, analysis.log, analysis.lost_by_step
    report = LogReport(
        headline=_log_headline(incident),
        severity=_log_severity(incident),
        source=LogSource(kind=analysis.source_kind, files=len(log.files), lines=log.lines),
        world_size=log.world_size,
        verdict=analysis.verdict,
        episodes=tuple(
            SlowStretch(start_step=index, end_step=index, ranks=(), lost_seconds=seconds)
            for index, seconds in lost.items()
        ),
        steps=analysis.summary,
        first_sign=log.first_sign,
        last_progress=log.last_progress,
        last_sign=log.last_sign,
        **{name: getattr(incident, name) for name in _COPIED},
        # Without step times nothing is known of a loss, which is not a loss of 0.
        lost_seconds=sum(lost.values()) if analysis.summary.count else None,
        events=analysis.first_lines,
        first_cause=incident.first,
        goodput=_sum_wall_clock(incident),
        notes=analysis.notes,
        unknown={},
    )
    return with_reasons(report, LOG_REASONS)


def _sum_wall_clock(incident: Incident) -> dict[str, float | None]:
    """Seconds of wall clock by what the job did, with ``unknown`` for the rest.

    ``ratio`` is the share of the run. A log shows when training began and ended, not the phases.
    """
    parts = {
        "startup": incident.startup_seconds,
        "run": incident.run_seconds,
        "after_last_progress": incident.seconds_after_last_progress,
    }
    wall, run = incident.wall_seconds, incident.run_seconds
    if wall is None:
        return {**parts, "unknown": None, "ratio": None}
    covered = sum(seconds for seconds in parts.values() if seconds is not None)
    return {
        **parts,
        # Overlapping clocks of several files can make the parts longer than the whole.
        "unknown": max(0.0, wall - covered),
        "ratio": min(1.0, run / wall) if run is not None and 0 < wall < math.inf else None,
    }
