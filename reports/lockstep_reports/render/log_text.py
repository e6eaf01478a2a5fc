"""The sentences of a report on a log: headline and story; its cards and its Markdown."""

from lockstep_catalogue.vocabulary import Severity
from lockstep_records.hang_events import rank_words
from lockstep_records.joblogs.model import Line
from lockstep_records.joblogs.outcome import Incident
from lockstep_reports.job_report import Card
from lockstep_reports.log_analysis import LogAnalysis
from lockstep_reports.wording import UNKNOWN, clock, duration, escaped, plural, printable

_OUTCOME_SENTENCES = {
    "succeeded": "The job succeeded",
    "failed": "The job failed",
    "cancelled": "The job was cancelled",
    "preempted": "The job was preempted",
    "time_limit": "The job ran into its time limit",
    "not_converged": "The job did not converge",
    "running": "The job is running",
    "unknown": "The log does not tell how the job ended",
}
_SEVERITY_BY_OUTCOME: dict[str, Severity] = {
    "succeeded": "nobody",
    "running": "nobody",
    "failed": "failed",
    "cancelled": "stopped",
    "preempted": "stopped",
    "time_limit": "stopped",
    "not_converged": "stopped",
    "unknown": "unknown",
}
_SEVERITY_BY_CAUSE: dict[str, Severity] = {
    "gpu_oom": "out_of_memory",
    "host_oom": "out_of_memory",
}
_MAX_NAMED_RANKS = 8


def log_severity(analysis: LogAnalysis) -> Severity:
    """What the headline is about."""
    incident = analysis.incident
    if is_hang(analysis):
        return "hung"
    by_outcome = _SEVERITY_BY_OUTCOME[incident.outcome]
    is_failure = by_outcome == "failed"
    return _SEVERITY_BY_CAUSE.get(incident.cause or "", by_outcome) if is_failure else by_outcome


def log_headline(analysis: LogAnalysis) -> str:
    """The outcome, and who is blamed for it."""
    incident = analysis.incident
    if is_hang(analysis):
        return _hang_words(incident)
    outcome = _OUTCOME_SENTENCES[incident.outcome]
    if incident.blame == "rank":
        more = ", ..." if len(incident.ranks) > _MAX_NAMED_RANKS else ""
        ranks = ", ".join(map(str, incident.ranks[:_MAX_NAMED_RANKS])) + more
        return f"{outcome}: rank {ranks} was the first cause."
    if incident.blame == "group":
        return f"{outcome}: node {incident.group} was the first cause."
    # A cancelled or finished job has nobody to blame, so only a failure is explained.
    if incident.outcome == "failed":
        causes = {"workload": "the workload's own fault", "nobody": "no rank is to blame"}
        return f"{outcome}: {causes.get(incident.blame, 'which rank began it cannot be told')}."
    return f"{outcome}."


def is_hang(analysis: LogAnalysis) -> bool:
    """Whether the log shows a job that stood still, whatever became of it."""
    return analysis.incident.cause == "hang"


def _hang_words(incident: Incident) -> str:
    """The reason of a hang with the job as its subject, and the ranks that were missing."""
    reason = printable(incident.reason)
    ranks = f"; {rank_words(incident.ranks)} did not come" if incident.ranks else ""
    begin = reason.removeprefix("It hung")
    if begin == reason:
        return f"The job hung{ranks}: {reason}"
    return f"The job hung{begin.rstrip('.')}{ranks}."


def log_story(analysis: LogAnalysis) -> str:
    """The reason, and how much of the time passed after the last progress."""
    incident = analysis.incident
    # Of a hang the headline is the reason itself.
    parts = [] if is_hang(analysis) else [printable(incident.reason)]
    if incident.seconds_after_last_progress is not None and incident.wall_seconds is not None:
        parts.append(
            f"{duration(incident.seconds_after_last_progress)} of "
            f"{duration(incident.wall_seconds)} passed after the last progress."
        )
    return " ".join(parts)


def log_cards(analysis: LogAnalysis) -> tuple[Card, ...]:
    """Spans of the job, median step and number of ranks; ``unknown`` where the log has none."""
    incident, summary, log = analysis.incident, analysis.summary, analysis.log
    num_times, num_lines = plural(summary.count, "recorded time"), plural(log.lines, "line")
    ranks = f"{log.world_size:,}" if log.world_size else UNKNOWN
    return (
        Card(duration(incident.startup_seconds), "start-up", "first sign to start of training"),
        Card(duration(incident.run_seconds), "run", "start of training to its end"),
        Card(duration(incident.wall_seconds), "wall clock", "first to last sign of the ranks"),
        Card(duration(incident.seconds_after_last_progress), "after the last progress", ""),
        Card(duration(summary.median_seconds), "median step", num_times),
        Card(ranks, "ranks", num_lines),
    )


def known_cards(analysis: LogAnalysis) -> list[Card]:
    """The cards that hold a value; why the others do not is told once, at the end of a report."""
    return [card for card in log_cards(analysis) if card.value != UNKNOWN]


def log_markdown(analysis: LogAnalysis) -> list[str]:
    """Lines of Markdown: headline, story, cards, first lines and notes."""
    lines = [
        f"# {escaped(log_headline(analysis))}", "",
        escaped(log_story(analysis)), "",
        f"- outcome: `{analysis.incident.outcome}`",
        f"- failure class: `{analysis.incident.failure_class or 'none'}`",
    ]  # fmt: skip
    lines += [f"- {card.label}: {card.value}" for card in known_cards(analysis)]
    lines += ["", "| when (UTC) | where | rank | what | line |", "| --- | --- | --- | --- | --- |"]
    for line in analysis.first_lines:
        bold = "**" if line == analysis.incident.first else ""
        cells = (f"{bold}{escaped(cell)}{bold}" if cell else "" for cell in _cells(line))
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"_{escaped(note)}_" for note in analysis.notes)]
    while lines and not lines[-1]:
        lines.pop()
    return [*lines, ""]


def _cells(line: Line) -> tuple[str, ...]:
    return (
        clock(line.time), f"{line.file}:{line.number}", rank_of(line), line.kind, line.text,
    )  # fmt: skip


def rank_of(line: Line) -> str:
    """The rank that wrote a line; empty where the line does not say it."""
    return "" if line.rank is None else str(line.rank)
