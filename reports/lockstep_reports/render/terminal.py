"""The report in the terminal: verdict, episodes, arrivals, cost and how it ended."""

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lockstep_reports.compare import Comparison, compared_in_words, signed
from lockstep_reports.incident import LogReport
from lockstep_reports.render.advice import next_steps
from lockstep_reports.render.headline import caveats, ended, grounds, headline, how_ended, story
from lockstep_reports.report import Report, lost_step_ratio
from lockstep_reports.summary import RankLine
from lockstep_reports.verdict.verdict import whom
from lockstep_reports.wording import clock, duration, milliseconds, percent, printable

_MOST_RANKS = 32
_COLOURS = {"rank": "red", "group": "red", "workload": "yellow", "nobody": "green"}


def show(report: Report, console: Console) -> None:
    """Prints the report; whatever came from pages is printed as it is, without markup."""
    colour = _COLOURS.get(report.verdict.kind, "yellow")
    title = Text(headline(report), style=f"bold {colour}")
    steps = report.steps
    console.print(
        Panel(
            Text.assemble(title, "\n", story(report)),
            title=Text(f"job {steps.job_id}, attempt {steps.attempt}"),
            border_style=colour,
            expand=False,
        )
    )
    for sentence in grounds(report):
        console.print(Text(f"  • {sentence}"))
    if report.episodes:
        console.print(_episodes(report))
    console.print(_arrivals(report))
    console.print(_costs(report))
    for sentence in (how_ended(report), *caveats(report)):
        console.print(Text(sentence))


def _episodes(report: Report) -> Table:
    table = Table(title="Episodes", title_justify="left")
    for column in ("who", "steps", "began (UTC)", "ended (UTC)", "phase"):
        table.add_column(column)
    for column in ("late a step", "lost", "of the step"):
        table.add_column(column, justify="right")
    for episode in report.episodes:
        start, _ = report.span(episode)
        table.add_row(
            Text(whom(episode)),
            f"{episode.start_step} to {episode.end_step}",
            clock(start),
            ended(report, episode),
            episode.phase or "none",
            duration(episode.late_seconds),
            duration(episode.lost_seconds),
            percent(lost_step_ratio(report, episode)),
        )
    return table


def _arrivals(report: Report) -> Table:
    first, last = report.ranks_over
    table = Table(title=f"Arrivals, steps {first} to {last}, in ms", title_justify="left")
    table.add_column("rank", justify="right")
    table.add_column("node")
    for column in ("last in", "arrival lag", "p95", "own work", "waits"):
        table.add_column(column, justify="right")
    latest_first = sorted(report.ranks, key=lambda line: -(line.lateness_seconds or 0.0))
    shown = {line.rank for line in latest_first[:_MOST_RANKS]}
    culprits = report.worst.ranks if report.worst else ()
    for line in report.ranks:
        if line.rank in shown:
            table.add_row(*_arrival(line), style="bold red" if line.rank in culprits else "")
    if len(report.ranks) > _MOST_RANKS:
        table.caption = f"the {_MOST_RANKS} latest of {len(report.ranks):,} ranks"
    return table


def _arrival(line: RankLine) -> list[str | Text]:
    return [
        str(line.rank),
        Text(line.node),
        percent(line.last_share),
        milliseconds(line.lag_seconds),
        milliseconds(line.lag_p95_seconds),
        milliseconds(line.own_work_seconds),
        milliseconds(line.sync_seconds),
    ]


def _costs(report: Report) -> Text:
    cost, goodput = report.cost, report.goodput
    money = "" if cost.lost_money is None else f", {cost.lost_money:,.2f} at the price given"
    states = ", ".join(
        f"{state.replace('_', ' ')} {percent(seconds / goodput.covered_seconds)}"
        for state, seconds in goodput.seconds.items()
        if seconds > 0
    )
    return Text(
        f"Lost to slow ranks: {duration(cost.lost_seconds)} ({percent(cost.lost_ratio)} of the "
        f"run), {duration(cost.lost_gpu_seconds)} over all ranks{money}.\n"
        f"Time of all ranks: {states}."
    )


def show_comparison(told: Comparison, console: Console) -> None:
    """Prints what changed."""
    table = Table(title=Text(f"Against {told.against}"), title_justify="left")
    table.add_column("what")
    for column in ("before", "after", "difference", "95 % interval", "effect"):
        table.add_column(column, justify="right")
    for line in told.changes:
        interval = "unknown"
        if line.low_seconds is not None:
            interval = f"{signed(line.low_seconds)} to {signed(line.high_seconds)}"
        table.add_row(
            line.what,
            duration(line.before_seconds),
            duration(line.after_seconds),
            signed(line.difference_seconds),
            interval,
            "unknown" if line.effect is None else f"{line.effect:+.2f}",
            style="bold" if line.is_sure else "",
        )
    console.print(table)
    console.print(Text(compared_in_words(told)))


def show_advice(report: Report | LogReport, console: Console) -> None:
    """Prints what to do next."""
    for sentence in next_steps(report):
        console.print(Text(f"→ {printable(sentence)}"))
