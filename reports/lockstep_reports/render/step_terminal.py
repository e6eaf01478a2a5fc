"""The terminal's part of a report on steps: verdict, episodes, arrivals, cost and its end."""

from collections.abc import Callable

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lockstep_reports.render.evidence_text import job_sentence, sign_sentences
from lockstep_reports.render.missing_reasons import why_no_arrivals, why_no_phases
from lockstep_reports.render.palette import SEVERITY_COLOURS
from lockstep_reports.render.step_text import (
    caveats,
    episode_end,
    further_evidence,
    has_clock,
    headline,
    how_ended,
    severity,
    story,
)
from lockstep_reports.step_analysis import StepAnalysis
from lockstep_reports.step_losses import loss_sentence
from lockstep_reports.summary import RankSummary
from lockstep_reports.verdict.verdict import culprits
from lockstep_reports.wording import clock, duration, milliseconds, percent

_MAX_RANKS = 32


def step_blocks(analysis: StepAnalysis) -> list[RenderableType]:
    """What the terminal prints; text from rank pages is printed without markup."""
    colour = SEVERITY_COLOURS[severity(analysis)]
    title = Text(headline(analysis), style=f"bold {colour}")
    steps = analysis.steps
    blocks: list[RenderableType] = [
        Panel(
            Text.assemble(title, "\n", story(analysis)),
            # `Text` and not a string: rich would take "[red]" in a job id for markup.
            title=Text(f"job {steps.job_id}, attempt {steps.attempt}"),
            border_style=colour,
            expand=False,
        )
    ]
    blocks += [Text(f"  • {sentence}") for sentence in further_evidence(analysis)]
    if analysis.episodes:
        blocks.append(_episode_table(analysis))
    blocks += [Text(f"  {loss_sentence(loss)}") for loss in analysis.summary.losses]
    if why_no_arrivals(analysis) is None or any(r.lateness_seconds for r in analysis.ranks):
        blocks.append(_arrival_table(analysis))
    if analysis.verdict.kind != "unknown" and analysis.summary.count:
        blocks.append(_loss_text(analysis))
    if why_no_phases(analysis) is None and analysis.goodput.covered_seconds > 0:
        blocks.append(_states_text(analysis))
    blocks += _job_blocks(analysis)
    blocks += [Text(sentence) for sentence in (how_ended(analysis), *caveats(analysis)) if sentence]
    return blocks


def _episode_table(analysis: StepAnalysis) -> Table:
    table = Table(title="Episodes", title_justify="left")
    is_timed = has_clock(analysis)
    for column in ("who", "steps", *(("began (UTC)", "ended (UTC)") if is_timed else ("ended",))):
        table.add_column(column)
    table.add_column("phase")
    for column in ("late a step", "lost", "of the step"):
        table.add_column(column, justify="right")
    for episode in analysis.episodes:
        begin, _ = analysis.episode_span(episode)
        table.add_row(
            Text(culprits(episode)),
            f"{episode.start_step} to {episode.end_step}",
            *((clock(begin),) if is_timed else ()),
            episode_end(analysis, episode),
            episode.phase or "none",
            duration(episode.late_seconds),
            duration(episode.lost_seconds),
            percent(analysis.lost_step_ratio(episode)),
        )
    return table


def _arrival_table(analysis: StepAnalysis) -> Table:
    first, last = analysis.ranks_over
    table = Table(title=f"Arrivals, steps {first} to {last}, in ms", title_justify="left")
    columns = _arrival_columns(analysis)
    for name in columns:
        table.add_column(name, justify="left" if name == "node" else "right")
    # The latest are chosen, then listed in the order of the ranks.
    latest_first = sorted(analysis.ranks, key=lambda rank: -(rank.lateness_seconds or 0.0))
    latest = {summary.rank for summary in latest_first[:_MAX_RANKS]}
    costliest = analysis.accused_episode
    culprits = costliest.ranks if costliest else ()
    for summary in analysis.ranks:
        if summary.rank in latest:
            style = "bold red" if summary.rank in culprits else ""
            table.add_row(*(cell(summary) for cell in columns.values()), style=style)
    if len(analysis.ranks) > _MAX_RANKS:
        table.caption = f"the {_MAX_RANKS} latest of {len(analysis.ranks):,} ranks"
    return table


def _arrival_columns(
    analysis: StepAnalysis,
) -> dict[str, Callable[[RankSummary], str | Text]]:
    """Name and cell of each column of which anything is known."""
    columns: dict[str, Callable[[RankSummary], str | Text]] = {"rank": lambda r: str(r.rank)}
    if any(summary.node for summary in analysis.ranks):
        columns["node"] = lambda r: Text(r.node)
    columns["last in"] = lambda r: percent(r.last_share)
    if why_no_arrivals(analysis) is None:
        columns["arrival lag"] = lambda r: milliseconds(r.lag_seconds)
        columns["p95"] = lambda r: milliseconds(r.lag_p95_seconds)
    columns["own work"] = lambda r: milliseconds(r.own_work_seconds)
    columns["waits"] = lambda r: milliseconds(r.sync_seconds)
    return columns


def _job_blocks(analysis: StepAnalysis) -> list[Text]:
    """Signs of the nodes of slow ranks, and where the time of the whole job went."""
    sentences = [*sign_sentences(analysis.signs), job_sentence(analysis.job)]
    return [Text(sentence) for sentence in sentences if sentence]


def _loss_text(analysis: StepAnalysis) -> Text:
    cost = analysis.cost
    money = "" if cost.lost_money is None else f", {cost.lost_money:,.2f} at the price given"
    whom = "slow ranks"
    if any(episode.busy_host for episode in analysis.episodes):
        whom = "slow ranks and busy hosts" if analysis.accused_episode else "busy hosts"
    return Text(
        f"Lost to {whom}: {duration(cost.lost_seconds)} ({percent(cost.lost_ratio)} of the "
        f"run), {duration(cost.lost_gpu_seconds)} over all ranks{money}."
    )


def _states_text(analysis: StepAnalysis) -> Text:
    goodput = analysis.goodput
    states = ", ".join(
        f"{state.replace('_', ' ')} {percent(seconds / goodput.covered_seconds)}"
        for state, seconds in goodput.seconds.items()
        if seconds > 0
    )
    return Text(f"Time of all ranks: {states}.")
