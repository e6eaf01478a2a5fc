"""The page of a board: the grid of its panels as HTML, with uPlot for what has an axis of time."""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from lockstep_catalogue.alert_boards import anchor
from lockstep_dashboards.panel import Panel, Row, pack
from lockstep_dashboards.snapshot.answers import BoardAnswer, Event
from lockstep_dashboards.snapshot.views import draw
from lockstep_records.text.durations import format_time

THEMES = ("light", "dark", "auto")
_HERE = Path(__file__).parent
_MAX_LISTED_EVENTS = 18
_MAX_DRAWN_EVENTS = 100
_HEADER_PIXELS, _HEADING_PIXELS, _LINE_PIXELS, _ROW_PIXELS = 90, 46, 20, 38


@dataclass(frozen=True, kw_only=True, slots=True)
class Controls:
    """What a served page offers besides its variables.

    Attributes:
        begin: the begin of the window as the address has it, such as ``now-15m``.
        open_query: parameters of the address that opens the collapsed rows too.
        refresh_seconds: time after which the page asks again; 0 where its window stands still.
    """

    begin: str
    ranges: tuple[tuple[str, str], ...]
    end: str
    open_query: str
    refresh_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PageOptions:
    """How a page is drawn.

    Attributes:
        theme: ``light``, ``dark``, or ``auto`` for the reader's own.
        bases: where links to ``boards``, ``runbooks`` and the ``ledger`` begin, if known.
    """

    address: str
    theme: str = "auto"
    bases: Mapping[str, str] = field(default_factory=dict)
    controls: Controls | None = None


@cache
def page_script() -> str:
    """uPlot, and what draws by it, follows the legend, and refreshes a served page."""
    library = (_HERE / "vendor" / "uPlot.iife.min.js").read_text(encoding="utf-8")
    return library + (_HERE / "templates" / "board.js").read_text(encoding="utf-8")


@cache
def page_style() -> str:
    """The style sheet of all pages."""
    library = (_HERE / "vendor" / "uPlot.min.css").read_text(encoding="utf-8")
    return library + (_HERE / "templates" / "board.css").read_text(encoding="utf-8")


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
    templates.filters["utc"] = format_time
    return templates


def render(template: str, **values: Any) -> str:
    """A template with these values and the style sheet."""
    return environment().get_template(f"{template}.html.j2").render(style=page_style(), **values)


def board_page(answer: BoardAnswer, options: PageOptions) -> str:
    """The whole page; as a file it needs no network and no other file."""
    policy = content_policy(is_served=options.controls is not None)
    content = page_content(answer, options)
    return render("board", **content, script=page_script(), policy=policy)


def board_part(answer: BoardAnswer, options: PageOptions) -> str:
    """The part of a served page that a refresh replaces."""
    return render("panels", **page_content(answer, options))


def page_height(answer: BoardAnswer) -> int:
    """Pixels that a page of usual width is high; a little more rather than less."""
    bottoms = [
        max((position.y + position.height for _, position in _placed(row)), default=0)
        for row in answer.board.rows
    ]
    lines = -(-min(len(_listed(answer)), _MAX_LISTED_EVENTS) // 3)
    heading = _HEADING_PIXELS * (1 + len(bottoms))
    return _HEADER_PIXELS + _LINE_PIXELS * lines + heading + _ROW_PIXELS * sum(bottoms)


def _placed(row: Row) -> list[tuple[Panel, Any]]:
    placed = pack((replace(row, title=""),))
    return [(item, position) for item, position in placed if isinstance(item, Panel)]


def page_content(answer: BoardAnswer, options: PageOptions) -> dict[str, Any]:
    """Values of the templates."""
    sections = list(_sections(answer, options))
    panels = [entry for section in sections for entry in section["panels"]]
    drawn = {entry["id"]: x for entry in panels if (x := entry["drawing"].figure)}
    events = [[x.begin, x.end, x.color] for x in answer.events]
    listed = _listed(answer)
    return {
        "answer": answer,
        "options": options,
        "sections": sections,
        "figures": script_json({"panels": drawn, "events": events[:_MAX_DRAWN_EVENTS]}),
        "events": listed[:_MAX_LISTED_EVENTS],
        "num_more_events": max(0, len(listed) - _MAX_LISTED_EVENTS),
        "notes": _notes(answer),
    }


def _sections(answer: BoardAnswer, options: PageOptions) -> Iterator[dict[str, Any]]:
    # Two panels of a board may be equal, so that a panel is found by its identity.
    answers = {id(each.panel): each for each in answer.panels}
    numbers = count()
    for row in answer.board.rows:
        entries = [
            {
                "panel": panel,
                "id": f"p{next(numbers)}",
                "title": answer.scope.fill_text(panel.title),
                "position": position,
                "answer": answers[id(panel)],
                "drawing": draw(answers[id(panel)], options.bases),
            }
            for panel, position in _placed(row)
            if id(panel) in answers
        ]
        yield {
            "title": answer.scope.fill_text(row.title) if row.has_heading else "",
            "anchor": anchor(row.title),
            "is_closed": bool(row.panels) and not entries,
            "panels": entries,
        }


def _listed(answer: BoardAnswer) -> list[tuple[Event, int]]:
    """Events as a list has them: equal ones once, from the first to the last, and their number."""
    groups: dict[tuple[str, str], tuple[Event, int]] = {}
    for event in answer.events:
        first, count = groups.get((event.name, event.heading), (event, 0))
        longest = replace(first, end=max(first.end, event.end))
        groups[event.name, event.heading] = (longest, count + 1)
    return list(groups.values())


def _notes(answer: BoardAnswer) -> list[str]:
    offered: Mapping[str, tuple[str, ...]] = answer.scope.offered
    notes = []
    for name, values in answer.scope.chosen.items():
        lost = [value for value in values if value not in offered.get(name, ())]
        if lost and any(lost):
            offers = ", ".join(offered.get(name, ())[:8]) or "none"
            lost_values = ", ".join(lost)
            notes.append(
                f"In this window no series has the {name} {lost_values}; there is {offers}."
            )
        elif lost:
            notes.append(f"No series has a {name} in this window.")
    if not notes and answer.queried and all(panel.is_empty for panel in answer.queried):
        notes.append("No panel has data in this window; choose another one.")
    return notes


def script_json(value: Any) -> str:
    """JSON for a script element of the page: nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def content_policy(*, is_served: bool) -> str:
    """What the browser lets the page do: run its script, and ask nobody else for anything."""
    digest = base64.b64encode(hashlib.sha256(page_script().encode()).digest()).decode()
    connect = "connect-src 'self'; " if is_served else ""
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; {connect}"
        "img-src data: blob:; base-uri 'none'; form-action 'self'"
    )
