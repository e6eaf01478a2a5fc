"""A report for an incident tracker: Markdown with plain tables, text from records escaped."""

from collections.abc import Iterable, Sequence

from lockstep_reports.compare import Comparison, comparison_sentence, signed
from lockstep_reports.cost import causes
from lockstep_reports.job_report import JobReport
from lockstep_reports.render.evidence_text import job_sentence, sign_sentences
from lockstep_reports.render.step_text import (
    caveats,
    further_evidence,
    headline,
    how_ended,
    story,
)
from lockstep_reports.step_analysis import StepAnalysis
from lockstep_reports.step_losses import loss_sentence
from lockstep_reports.verdict.verdict import culprits
from lockstep_reports.wording import clock, duration, escaped, milliseconds, percent

_MAX_RANKS = 16


def as_markdown(report: JobReport, comparison: Comparison | None = None) -> str:
    """The whole text, with a newline at its end."""
    lines = report.markdown_body()
    lines += [] if comparison is None else _comparison_section(comparison)
    lines += _list("What to do next", report.advice)
    lines += report.markdown_footer()
    gaps = (f"`{name}`: {escaped(reason)}" for name, reason in report.missing_reasons.items())
    lines += _list("What this report cannot tell", gaps)
    return "\n".join(lines).rstrip() + "\n"


def _comparison_section(comparison: Comparison) -> list[str]:
    columns = ("what", "before", "after", "difference", "95 % interval", "effect")
    rows = [
        (
            change.what, duration(change.before_seconds), duration(change.after_seconds),
            signed(change.difference_seconds),
            "unknown" if change.low_seconds is None
            else f"{signed(change.low_seconds)} to {signed(change.high_seconds)}",
            "unknown" if change.effect is None else f"{change.effect:+.2f}",
        )
        for change in comparison.changes
    ]  # fmt: skip
    title = f"## Against {escaped(comparison.against)}"
    return [title, "", escaped(comparison_sentence(comparison)), "", *_table(columns, rows)]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table with escaped cells; empty without rows."""
    lines = ["| " + " | ".join(escaped(cell) for cell in row) + " |" for row in rows]
    if not lines:
        return []
    return ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|", *lines, ""]


def _list(title: str, sentences: Iterable[str]) -> list[str]:
    """A list under its title; empty without sentences."""
    lines = [f"- {sentence}" for sentence in sentences]
    return [f"## {title}", "", *lines, ""] if lines else []


def step_markdown(analysis: StepAnalysis) -> list[str]:
    """Lines of Markdown of a report on steps: verdict, evidence, episodes, latest ranks, costs."""
    steps = analysis.steps
    job = f"Job `{escaped(steps.job_id)}`, attempt {steps.attempt}, {steps.world_size:,} ranks."
    return [
        f"# {escaped(headline(analysis))}", "",
        job, "",
        escaped(story(analysis)), "",
        *_list("Evidence", map(escaped, further_evidence(analysis))),
        *_episode_section(analysis),
        *_list("Slow steps", (escaped(loss_sentence(loss)) for loss in analysis.summary.losses)),
        *_rank_section(analysis),
        *_list("Signs on the nodes", map(escaped, sign_sentences(analysis.signs))),
        *_cost_section(analysis),
        *_job_section(analysis),
    ]  # fmt: skip


def step_markdown_footer(analysis: StepAnalysis) -> list[str]:
    """How the attempt ended, and what was not read or judged."""
    # Two spaces at the end of a line are Markdown's line break.
    sentences = filter(None, (how_ended(analysis), *caveats(analysis)))
    return [*(f"_{escaped(sentence)}_  " for sentence in sentences), ""]


def _episode_section(analysis: StepAnalysis) -> list[str]:
    columns = ("who", "steps", "began (UTC)", "phase", "late a step", "lost", "of each step")
    rows = [
        (
            culprits(episode), f"{episode.start_step} to {episode.end_step}",
            clock(analysis.episode_span(episode)[0]), episode.phase or "none of its own",
            duration(episode.late_seconds), duration(episode.lost_seconds),
            percent(analysis.lost_step_ratio(episode)),
        )
        for episode in analysis.episodes
    ]  # fmt: skip
    return ["## Time lost", "", *_table(columns, rows)] if rows else []


def _rank_section(analysis: StepAnalysis) -> list[str]:
    measured = [rank for rank in analysis.ranks if rank.lateness_seconds is not None]
    latest = sorted(measured, key=lambda rank: -(rank.lateness_seconds or 0.0))[:_MAX_RANKS]
    columns = ("rank", "node", "last in", "late, ms", "own work, ms", "waits, ms")
    rows = [
        (
            str(summary.rank), summary.node, percent(summary.last_share),
            milliseconds(summary.lateness_seconds), milliseconds(summary.own_work_seconds),
            milliseconds(summary.sync_seconds),
        )
        for summary in latest
    ]  # fmt: skip
    if not rows:
        return []
    title = f"## Latest ranks, steps {analysis.ranks_over[0]} to {analysis.ranks_over[1]}"
    return [title, "", *_table(columns, rows)]


def _job_section(analysis: StepAnalysis) -> list[str]:
    sentence = job_sentence(analysis.job)
    return [] if sentence is None else ["", escaped(sentence), ""]


def _cost_section(analysis: StepAnalysis) -> list[str]:
    costs = causes(analysis.goodput, analysis.price_per_gpu_hour)
    if not costs or analysis.goodput.ratio is None:
        return []
    rows = [
        (
            cause.cause.replace("_", " "), f"{cause.gpu_hours:,.3g}", percent(cause.ratio),
            "" if cause.money is None else f"{cause.money:,.2f}",
        )
        for cause in costs
    ]  # fmt: skip
    title = f"## Where the time went: {percent(analysis.goodput.ratio)} productive"
    return [title, "", *_table(("cause", "GPU-hours", "share", "money"), rows)]
