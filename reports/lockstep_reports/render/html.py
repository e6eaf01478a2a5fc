"""A report of any kind as one self-contained HTML page: no network, no other file."""

from jinja2 import Environment, PackageLoader, StrictUndefined

from lockstep_reports.compare import Comparison, Figure, comparison_sentence, signed
from lockstep_reports.job_report import JobReport
from lockstep_reports.wording import UNKNOWN, clock, duration, milliseconds, percent


def as_html(report: JobReport, comparison: Comparison | None = None, board: str = "") -> str:
    """The whole page. The template escapes everything that came from records.

    Args:
        report: of any kind.
        comparison: with another recording; None for none.
        board: address of a snapshot of the job's board, relative to the page; empty for none.
    """
    environment = Environment(
        # StrictUndefined: a variable that a template misses is an error and no empty cell.
        loader=PackageLoader("lockstep_reports"), autoescape=True, undefined=StrictUndefined
    )  # fmt: skip
    environment.filters |= {
        "clock": clock,
        "duration": duration,
        "figure": _figure,
        "milliseconds": milliseconds,
        "percent": percent,
        "signed": signed,
    }
    page = report.page()
    return environment.get_template(page.template).render(
        headline=report.headline,
        severity=report.severity,
        story=report.story,
        cards=[card for card in report.cards if card.value != UNKNOWN],
        comparison=comparison,
        comparison_sentence="" if comparison is None else comparison_sentence(comparison),
        advice=report.advice,
        board=board,
        missing_reasons=report.missing_reasons,
        **page.content,
    )


def _figure(figure: Figure, side: str) -> str:
    """One side of a compared figure, in the unit that its name ends with."""
    value = figure.before if side == "before" else figure.after
    if figure.what.endswith("_ratio"):
        return percent(value)
    if "seconds" in figure.what:
        return duration(value)
    return "unknown" if value is None else f"{value:,.4g}"
