"""The report for an incident tracker: Markdown with plain tables, names from records escaped."""

from collections.abc import Iterable, Sequence

from lockstep_reports import cost as costs
from lockstep_reports.compare import Comparison, compared_in_words, signed
from lockstep_reports.incident import LogReport
from lockstep_reports.render.advice import next_steps
from lockstep_reports.render.headline import caveats, grounds, headline, how_ended, story
from lockstep_reports.render.incident_text import incident_markdown
from lockstep_reports.render.missing_reasons import untold
from lockstep_reports.report import Report, lost_step_ratio
from lockstep_reports.verdict.verdict import whom
from lockstep_reports.wording import clock, duration, escaped, milliseconds, percent

_MOST_RANKS = 16


def as_markdown(report: Report | LogReport, comparison: Comparison | None = None) -> str:
    """The whole text."""
    if isinstance(report, LogReport):
        lines = [incident_markdown(report).rstrip(), ""]
    else:
        lines = [*_head(report), *_episodes(report), *_arrivals(report), *_costs(report)]
    lines += _comparison(comparison)
    lines += _list("What to do next", next_steps(report))
    if isinstance(report, Report):
        lines += [f"_{escaped(sentence)}_  " for sentence in (how_ended(report), *caveats(report))]
        lines.append("")
    left_out = (f"`{name}`: {escaped(why)}" for name, why in untold(report).items())
    lines += _list("What this report cannot tell", left_out)
    return "\n".join(lines).rstrip() + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table, cells escaped; empty without rows."""
    told = ["| " + " | ".join(escaped(cell) for cell in row) + " |" for row in rows]
    if not told:
        return []
    return ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|", *told, ""]


def _list(title: str, sentences: Iterable[str]) -> list[str]:
    told = [f"- {sentence}" for sentence in sentences]
    return [f"## {title}", "", *told, ""] if told else []


def _head(report: Report) -> list[str]:
    steps = report.steps
    return [
        f"# {escaped(headline(report))}", "",
        f"Job `{escaped(steps.job_id)}`, attempt {steps.attempt}, {steps.world_size:,} ranks.", "",
        escaped(story(report)), "",
        *_list("Evidence", map(escaped, grounds(report))),
    ]  # fmt: skip


def _episodes(report: Report) -> list[str]:
    columns = ("who", "steps", "began (UTC)", "phase", "late a step", "lost", "of each step")
    rows = [
        (
            whom(episode), f"{episode.start_step} to {episode.end_step}",
            clock(report.span(episode)[0]), episode.phase or "none of its own",
            duration(episode.late_seconds), duration(episode.lost_seconds),
            percent(lost_step_ratio(report, episode)),
        )
        for episode in report.episodes
    ]  # fmt: skip
    return ["## Time lost", "", *table(columns, rows)] if rows else []


def _arrivals(report: Report) -> list[str]:
    known = [line for line in report.ranks if line.lateness_seconds is not None]
    latest = sorted(known, key=lambda line: -(line.lateness_seconds or 0.0))[:_MOST_RANKS]
    columns = ("rank", "node", "last in", "late, ms", "own work, ms", "waits, ms")
    rows = [
        (
            str(line.rank), line.node, percent(line.last_share),
            milliseconds(line.lateness_seconds), milliseconds(line.own_work_seconds),
            milliseconds(line.sync_seconds),
        )
        for line in latest
    ]  # fmt: skip
    if not rows:
        return []
    title = f"## Latest ranks, steps {report.ranks_over[0]} to {report.ranks_over[1]}"
    return [title, "", *table(columns, rows)]


def _costs(report: Report) -> list[str]:
    told = costs.causes(report.goodput, report.price_per_gpu_hour)
    if not told or report.goodput.ratio is None:
        return []
    rows = [
        (
            line.cause.replace("_", " "), f"{line.gpu_hours:,.3g}", percent(line.ratio),
            "" if line.money is None else f"{line.money:,.2f}",
        )
        for line in told
    ]  # fmt: skip
    title = f"## Where the time went: {percent(report.goodput.ratio)} productive"
    return [title, "", *table(("cause", "GPU-hours", "share", "money"), rows)]


def _comparison(told: Comparison | None) -> list[str]:
    if told is None:
        return []
    columns = ("what", "before", "after", "difference", "95 % interval", "effect")
    rows = [
        (
            line.what, duration(line.before_seconds), duration(line.after_seconds),
            signed(line.difference_seconds),
            "unknown" if line.low_seconds is None
            else f"{signed(line.low_seconds)} to {signed(line.high_seconds)}",
            "unknown" if line.effect is None else f"{line.effect:+.2f}",
        )
        for line in told.changes
    ]  # fmt: skip
    title = f"## Against {escaped(told.against)}"
    return [title, "", escaped(compared_in_words(told)), "", *table(columns, rows)]
