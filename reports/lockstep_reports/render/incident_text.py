"""The incident in words: headline, the sentences after it, terminal and Markdown."""

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lockstep_records.joblogs.model import Line
from lockstep_reports.incident import LogReport
from lockstep_reports.wording import clock, duration, escaped, plural, printable

_COLOURS = {"succeeded": "green", "running": "green", "failed": "red"}
_SAID = {
    "succeeded": "The job succeeded",
    "failed": "The job failed",
    "cancelled": "The job was cancelled",
    "preempted": "The job was preempted",
    "time_limit": "The job ran into its time limit",
    "not_converged": "The job did not converge",
    "running": "The job is running",
    "unknown": "Nobody can tell how the job ended",
}
_WIDTH, _NAMED_RANKS = 160, 8


def incident_headline(report: LogReport) -> str:
    """The outcome, and whom it is blamed on."""
    incident = report.incident
    said = _SAID[incident.outcome]
    if incident.blame == "rank":
        more = ", ..." if len(incident.ranks) > _NAMED_RANKS else ""
        ranks = ", ".join(map(str, incident.ranks[:_NAMED_RANKS])) + more
        return f"{said}: rank {ranks} was the first cause."
    if incident.blame == "group":
        return f"{said}: node {incident.group} was the first cause."
    if incident.outcome == "failed":
        whose = {"workload": "the workload's own fault", "nobody": "no rank is to blame"}
        return f"{said}: {whose.get(incident.blame, 'which rank began it cannot be told')}."
    return f"{said}."


def incident_story(report: LogReport) -> str:
    """Why, and how long it stood still before its end."""
    incident = report.incident
    parts = [printable(incident.reason)]
    if incident.seconds_after_last_progress is not None and incident.wall_seconds is not None:
        parts.append(
            f"{duration(incident.seconds_after_last_progress)} of "
            f"{duration(incident.wall_seconds)} passed after the last progress."
        )
    return " ".join(parts)


def figures_told(report: LogReport) -> list[tuple[str, str, str]]:
    """Figure, what it is, and a remark."""
    incident, summary, log = report.incident, report.summary, report.log
    return [
        (duration(incident.startup_seconds), "start-up", "first sign to start of training"),
        (duration(incident.run_seconds), "run", "start of training to its end"),
        (duration(incident.wall_seconds), "wall clock", "first to last sign of the ranks"),
        (duration(incident.seconds_after_last_progress), "after the last progress", ""),
        (duration(summary.median_seconds), "median step", plural(summary.count, "recorded time")),
        (
            f"{log.world_size:,}" if log.world_size else "unknown",
            "ranks",
            plural(log.lines, "line"),
        ),
    ]


def show_incident(report: LogReport, console: Console) -> None:
    """Prints the report; what came from the log is printed as it is, without markup."""
    colour = _COLOURS.get(report.incident.outcome, "yellow")
    console.print(
        Panel(
            Text.assemble(
                Text(incident_headline(report), style=f"bold {colour}"),
                "\n",
                incident_story(report),
            ),
            title=Text(report.path.name),
            border_style=colour,
            expand=False,
        )
    )
    for figure, what, remark in figures_told(report):
        console.print(Text(f"  {what}: {figure}" + (f" ({remark})" if remark else "")))
    if report.moments:
        console.print(_moments(report))
    for step in report.slow_steps[:8]:
        console.print(
            Text(f"  step at place {step.index}: {step.ratio:.2f} times the median, "
                 f"{duration(step.lost_seconds)} lost")
        )  # fmt: skip
    for note in report.notes:
        console.print(Text(printable(note)))


def _moments(report: LogReport) -> Table:
    table = Table(title="What the log tells, first cause in bold", title_justify="left")
    for column in ("when (UTC)", "where", "rank", "what", "line"):
        table.add_column(column, overflow="fold")
    for line in report.moments:
        table.add_row(
            clock(line.time), Text(f"{line.file}:{line.number}"), _rank(line), line.kind,
            Text(printable(line.text)[:_WIDTH]),
            style="bold red" if line == report.incident.first else "",
        )  # fmt: skip
    return table


def _rank(line: Line) -> str:
    return "" if line.rank is None else str(line.rank)


def incident_markdown(report: LogReport) -> str:
    """The report for an incident tracker."""
    lines = [
        f"# {escaped(incident_headline(report))}", "",
        escaped(incident_story(report)), "",
        f"- outcome: `{report.incident.outcome}`",
        f"- failure class: `{report.incident.failure_class or 'none'}`",
    ]  # fmt: skip
    lines += [f"- {what}: {figure}" for figure, what, _ in figures_told(report)]
    lines += ["", "| when (UTC) | where | rank | what | line |", "| --- | --- | --- | --- | --- |"]
    for line in report.moments:
        bold = "**" if line == report.incident.first else ""
        cells = (clock(line.time), f"{line.file}:{line.number}", _rank(line), line.kind, line.text)
        lines.append(
            "| "
            + " | ".join(f"{bold}{escaped(cell)}{bold}" if cell else "" for cell in cells)
            + " |"
        )
    lines += ["", *(f"_{escaped(note)}_" for note in report.notes)]
    return "\n".join(lines).rstrip() + "\n"
