"""What every page of a report shares: the environment of the templates, and the closing parts."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from lockstep_reports.compare import Comparison, Figure, compared_in_words, signed
from lockstep_reports.incident import LogReport
from lockstep_reports.render.advice import next_steps
from lockstep_reports.render.missing_reasons import untold
from lockstep_reports.report import Report
from lockstep_reports.wording import clock, duration, milliseconds, percent


def page(
    template: str, report: Report | LogReport, comparison: Comparison | None, **content: Any
) -> str:
    """A whole page. Everything that came from records is escaped by the template."""
    environment = Environment(
        loader=PackageLoader("lockstep_reports"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "clock": clock,
        "duration": duration,
        "figure": _figure,
        "milliseconds": milliseconds,
        "percent": percent,
        "signed": signed,
    }
    return environment.get_template(template).render(
        report=report,
        comparison=comparison,
        comparison_said="" if comparison is None else compared_in_words(comparison),
        next_steps=next_steps(report),
        untold=untold(report),
        **content,
    )


def _figure(line: Figure, side: str) -> str:
    value = line.before if side == "before" else line.after
    if line.what.endswith("_ratio"):
        return percent(value)
    if "seconds" in line.what:
        return duration(value)
    return "unknown" if value is None else f"{value:,.4g}"
