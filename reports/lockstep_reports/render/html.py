"""A report as one self-contained HTML page: no network, no other file."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from lockstep_reports.document.model import Document, Figure, Shares, Table
from lockstep_reports.wording import printable_lines


def render(document: Document, _path: Path) -> str:
    """The page. The template escapes everything that came from records."""
    environment = Environment(
        # StrictUndefined: a variable that a template misses is an error, not an empty cell.
        loader=PackageLoader("lockstep_reports.render"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_make_safe,
    )
    figures = [
        block
        for section in document.sections
        for block in section.blocks
        if isinstance(block, Figure) and block.by_plotly
    ]
    return environment.get_template("report.html.j2").render(
        document=document,
        kind_of={Figure: "figure", Shares: "shares", Table: "table", tuple: "sentences"}.get,
        # The script has 4.8 MB, so a page without figures goes without it.
        plotly_script=_read_script() if figures else "",
    )


def _make_safe(value: Any) -> Any:
    """Text without characters that reorder or hide others; what is safe HTML stays as it is."""
    return printable_lines(value) if type(value) is str else value


def _read_script() -> str:
    from plotly.offline import get_plotlyjs  # noqa: PLC0415  # pages without figures need no plotly

    return str(get_plotlyjs())
