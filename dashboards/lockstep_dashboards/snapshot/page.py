"""The page of a board: the grid of its panels as HTML, with plotly for what has an axis of time."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from lockstep_dashboards.snapshot.answers import BoardAnswer, Event, PanelAnswer
from lockstep_dashboards.snapshot.board_file import GrafanaPanel, Section
from lockstep_dashboards.snapshot.colors import css_color
from lockstep_dashboards.snapshot.variables import fill
from lockstep_dashboards.snapshot.views import heat_map, stat, state_timeline, table, time_series
from lockstep_dashboards.snapshot.views.drawing import Drawing, Scene, message
from lockstep_records.shared.durations import format_time

THEMES = ("light", "dark", "auto")
_TEMPLATES = Path(__file__).parent / "templates"
_MAX_LISTED_EVENTS = 18
_HEADER_PIXELS, _HEADING_PIXELS, _LINE_PIXELS, _ROW_PIXELS = 90, 46, 20, 38
_VIEWS: Mapping[str, Callable[[PanelAnswer, Scene], Drawing]] = {
    "timeseries": time_series.draw,
    "heatmap": heat_map.draw,
    "state-timeline": state_timeline.draw,
    "status-history": state_timeline.draw,
    "stat": stat.draw,
    "gauge": stat.draw_bars,
    "bargauge": stat.draw_bars,
    "table": table.draw,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Controls:
    """What a served page offers besides its variables.

    Attributes:
        begin: the begin of the window as the address has it, such as ``now-15m``.
        ranges: begins that may be chosen, each with its name.
        end: the end of the window as the address has it.
        open_query: parameters of the address that opens the collapsed rows too.
    """

    begin: str
    ranges: tuple[tuple[str, str], ...]
    end: str
    open_query: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PageOptions:
    """How a page is drawn.

    Attributes:
        theme: ``light``, ``dark``, or ``auto`` for the reader's own.
        may_be_empty: why a panel may have no data, by its title.
        refresh_seconds: time after which a served page asks again; None for a file.
        controls: the times and boards that a served page offers.
        address: of the Prometheus, without a password.
    """

    address: str
    theme: str = "auto"
    may_be_empty: Mapping[str, str] = field(default_factory=dict)
    refresh_seconds: float | None = None
    controls: Controls | None = None

    @property
    def is_served(self) -> bool:
        """Whether a server answers the page's links."""
        return self.refresh_seconds is not None


@cache
def plotly_script() -> str:
    """The plotly library; a file contains it once, a server sends it as a file of its own."""
    return str(get_plotlyjs())


def plotly_version() -> str:
    """The version of the plotly library."""
    return str(get_plotlyjs_version())


@cache
def page_script() -> str:
    """What draws the figures, follows the legend, and refreshes a served page."""
    return (_TEMPLATES / "board.js").read_text(encoding="utf-8")


@cache
def page_style() -> str:
    """The style sheet of all pages."""
    return (_TEMPLATES / "board.css").read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """The templates; they escape every value."""
    # StrictUndefined: a variable that a template misses is an error and no empty cell.
    templates = Environment(
        loader=PackageLoader("lockstep_dashboards.snapshot"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"utc": format_time, "css_color": css_color}
    return templates


def board_page(answer: BoardAnswer, options: PageOptions) -> str:
    """The whole page; as a file it needs no network and no other file."""
    scripts = {} if options.is_served else {"plotly": plotly_script()}
    return (
        environment()
        .get_template("board.html.j2")
        .render(
            **page_content(answer, options),
            style=page_style(),
            script=page_script(),
            scripts=scripts,
            plotly_version=plotly_version(),
            policy=content_policy(is_served=options.is_served),
        )
    )


def board_part(answer: BoardAnswer, options: PageOptions) -> str:
    """The part of a served page that a refresh replaces."""
    return environment().get_template("panels.html.j2").render(**page_content(answer, options))


def page_height(answer: BoardAnswer) -> int:
    """Pixels that a page of usual width is high; a little more rather than less."""
    rows = 0
    for section in answer.board.sections:
        top = min((panel.y for panel in section.panels), default=0)
        rows += max((panel.y + panel.height - top for panel in section.panels), default=0)
    lines = -(-min(len(_listed(answer.events)), _MAX_LISTED_EVENTS) // 3)
    heading = _HEADING_PIXELS * (1 + len(answer.board.sections))
    return _HEADER_PIXELS + _LINE_PIXELS * lines + heading + _ROW_PIXELS * rows


def page_content(answer: BoardAnswer, options: PageOptions) -> dict[str, Any]:
    """Values of the templates."""
    scene = Scene(
        window=answer.window,
        events=answer.events,
        choices=answer.choices,
        has_links=options.is_served,
    )
    by_panel = {panel_answer.panel.number: panel_answer for panel_answer in answer.panels}
    drawings = {
        number: draw(panel_answer, scene, options.may_be_empty)
        for number, panel_answer in by_panel.items()
    }
    figures = {
        str(number): drawing.figure for number, drawing in drawings.items() if drawing.figure
    }
    listed = _listed(answer.events)
    return {
        "answer": answer,
        "options": options,
        "sections": [
            _section(section, by_panel, drawings, answer) for section in answer.board.sections
        ],
        "figures": script_json(figures),
        "events": listed[:_MAX_LISTED_EVENTS],
        "num_more_events": max(0, len(listed) - _MAX_LISTED_EVENTS),
        "notes": _notes(answer),
    }


def _listed(events: Iterable[Event]) -> list[tuple[Event, int]]:
    """Events as a list has them: equal ones once, from the first to the last, and their number."""
    groups: dict[tuple[str, str], tuple[Event, int]] = {}
    for event in events:
        first, count = groups.get((event.name, event.heading), (event, 0))
        longest = replace(first, end=max(first.end, event.end))
        groups[event.name, event.heading] = (longest, count + 1)
    return list(groups.values())


def _notes(answer: BoardAnswer) -> list[str]:
    """Sentences on why a page may be empty."""
    notes = [choice.missing for choice in answer.choices if choice.missing]
    queried = [panel for panel in answer.panels if panel.queries]
    if not notes and queried and all(panel.is_empty for panel in queried):
        notes.append("No panel has data in this window; choose another one.")
    return notes


def draw(answer: PanelAnswer, scene: Scene, may_be_empty: Mapping[str, str]) -> Drawing:
    """One panel; a panel without data says why it has none."""
    panel = answer.panel
    if panel.kind == "text":
        return _text(panel, scene)
    view = _VIEWS.get(panel.kind)
    if view is None:
        return message(f"Only Grafana draws the view {panel.kind!r}.")
    if answer.is_empty:
        if answer.problem:
            return message(answer.problem)
        reason = may_be_empty.get(panel.title, "")
        return message("No data in this window" + (f": {reason}." if reason else "."))
    return view(answer, scene)


def _text(panel: GrafanaPanel, scene: Scene) -> Drawing:
    content = fill(str(panel.options.get("content", "")), scene.choices, scene.window.built_in)
    # Without HTML in it, what Markdown yields is safe: it refuses javascript: links too.
    rendered = MarkdownIt("commonmark", {"html": False}).render(content)
    return Drawing(view="text", content={"html": Markup(rendered)})  # noqa: S704  # see above


def _section(
    section: Section,
    by_panel: Mapping[int, PanelAnswer],
    drawings: Mapping[int, Drawing],
    answer: BoardAnswer,
) -> dict[str, Any]:
    """A heading and the panels that were asked for; their rows are counted from its own first."""
    top = min((panel.y for panel in section.panels), default=0)
    built_in = answer.window.built_in
    panels = [
        {
            "panel": panel,
            "title": fill(panel.title, answer.choices, built_in),
            "row": panel.y - top + 1,
            "answer": by_panel[panel.number],
            "drawing": drawings[panel.number],
        }
        for panel in section.panels
        if panel.number in drawings
    ]
    return {
        "title": fill(section.title, answer.choices, built_in),
        "is_closed": bool(section.panels) and not panels,
        "panels": panels,
    }


def script_json(value: Any) -> str:
    """JSON for a script element of the page: nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def content_policy(*, is_served: bool) -> str:
    """What the browser lets the page do: run these scripts, and ask nobody else for anything."""
    allowed = [page_script()] if is_served else [plotly_script(), page_script()]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in allowed]
    scripts = " ".join([*(["'self'"] if is_served else []), *(f"'sha256-{x}'" for x in hashes)])
    connect = "connect-src 'self'; " if is_served else ""
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; {connect}"
        "img-src data: blob:; base-uri 'none'; form-action 'self'"
    )
