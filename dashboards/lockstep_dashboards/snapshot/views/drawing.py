"""What a view makes of a panel's answers: values for a template, or a figure of plotly."""

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lockstep_dashboards.snapshot.answers import Event
from lockstep_dashboards.snapshot.board_file import GrafanaPanel
from lockstep_dashboards.snapshot.colors import css_color
from lockstep_dashboards.snapshot.variables import Choice
from lockstep_dashboards.snapshot.window import Window

GREY = "#8c8c8c"
_CELL_PIXELS, _PIXELS_AROUND = 38, 95  # title, axis and legend are around the rows
_FONT_PIXELS, _LEAST_FONT_PIXELS = 12, 8
_MAX_EVENTS = 100
_MANY_LINES = 12  # beyond it, lines are paler than the series behind which they stand
_DIGITS = 6
_TICKS_A_COLUMN = 0.5  # a column is some 55 pixels wide, a label with its room 110
_EVENTS_AXIS = "y9"
_AXIS = {"automargin": True, "fixedrange": False, "zeroline": False, "title": {"text": ""}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What all panels of a page share.

    Attributes:
        has_links: whether the page can link to other boards, as one that is served can.
    """

    window: Window
    events: tuple[Event, ...] = ()
    choices: tuple[Choice, ...] = ()
    has_links: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LegendEntry:
    """A series in the legend: its name, its style, and the trace that a click hides."""

    name: str
    color: str
    dash: str = "solid"
    value: str = ""
    trace: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """How a panel is drawn.

    Attributes:
        view: the template's part: figure, stat, table, bars, text or message.
        content: values for that part.
        figure: data and layout for plotly, or None.
    """

    view: str
    content: Mapping[str, Any] = field(default_factory=dict)
    figure: Mapping[str, Any] | None = None
    legend: tuple[LegendEntry, ...] = ()


def message(text: str) -> Drawing:
    """A sentence in place of a drawing."""
    return Drawing(view="message", content={"text": text})


def plot_text(text: str) -> str:
    """Text as plotly draws it: plotly takes a few tags and entities for markup."""
    return html.escape(text, quote=False)


def plot_color(name: str) -> str:
    """A colour that plotly knows; it cannot read the variables of a style sheet."""
    return css_color(name, GREY)


def plot_time(seconds: float) -> str:
    """A time on a date axis, in UTC, without a zone: plotly would move it to the browser's."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def rounded(value: float | None, divisor: float = 1.0) -> float | None:
    """A value with six significant digits: more than a line shows, in half the bytes."""
    return None if value is None else float(f"{value / divisor:.{_DIGITS}g}")


def time_grid(window: Window) -> dict[str, Any]:
    """The points of a window for a trace, whose times are evenly spaced."""
    return {"x0": plot_time(window.begin), "dx": window.step_seconds * 1000}


def figure(
    scene: Scene,
    panel: GrafanaPanel,
    traces: Iterable[Mapping[str, Any]],
    y_axis: Mapping[str, Any],
    **layout: Any,
) -> dict[str, Any]:
    """Data and layout of a figure over time, with the annotations on its axis."""
    window, shapes = scene.window, layout.pop("shapes", [])
    events = scene.events[:_MAX_EVENTS]
    drawn = [*traces, *([_event_markers(events)] if events else [])]
    hidden = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    return {
        "data": drawn,
        "layout": {
            "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
            "xaxis": _AXIS
            | {
                "type": "date",
                "range": [plot_time(window.begin), plot_time(window.end)],
                "nticks": max(4, round(panel.width * _TICKS_A_COLUMN)),
                "tickangle": 0,
            },
            "yaxis": _AXIS | {"nticks": 6, "exponentformat": "none"} | dict(y_axis),
            "yaxis9": hidden,
            "shapes": [*_event_shapes(events, window), *shapes],
            "showlegend": False,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "inherit", "size": _FONT_PIXELS},
            "hovermode": "x unified",
            "hoverlabel": {"namelength": 60},
        }
        | layout,
    }


def row_ticks(num_rows: int, panel: GrafanaPanel) -> dict[str, Any]:
    """A label on each row where there is room for it, in a smaller font if need be."""
    pixels = (panel.height * _CELL_PIXELS - _PIXELS_AROUND) / max(num_rows, 1)
    if pixels < _LEAST_FONT_PIXELS:
        return {}
    font = {"size": min(_FONT_PIXELS, int(pixels))}
    return {"tickmode": "linear", "dtick": 1, "tickfont": font}


def _event_shapes(events: Iterable[Event], window: Window) -> list[dict[str, Any]]:
    """A line where an event begins, and one region for all of a name that overlap."""
    shapes: list[dict[str, Any]] = []
    begins: set[tuple[str, float]] = set()
    for event in events:
        if (event.color, event.begin) not in begins:
            begins.add((event.color, event.begin))
            line = {"color": plot_color(event.color), "width": 1.5, "dash": "dot"}
            shapes.append(
                _scale_to_height(event.begin, event.begin) | {"type": "line", "line": line}
            )
    if len(shapes) > _MANY_LINES:
        shapes = [shape | {"opacity": 0.3} for shape in shapes]
    for color, begin, end in _regions(events):
        if end - begin > window.step_seconds:
            fill = {"fillcolor": plot_color(color), "opacity": 0.13, "line": {"width": 0}}
            shapes.append(_scale_to_height(begin, end) | {"type": "rect"} | fill)
    return shapes


def _scale_to_height(begin: float, end: float) -> dict[str, Any]:
    """The place of a shape from the foot to the top of a figure, behind its series."""
    times = {"x0": plot_time(begin), "x1": plot_time(end)}
    return {"xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"} | times


def _regions(events: Iterable[Event]) -> list[tuple[str, float, float]]:
    """Colour, begin and end of the times in which events of a name last; none overlap.

    Twenty alerts at a time would otherwise cover the series with twenty layers.
    """
    by_name: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for event in sorted(events, key=lambda event: event.begin):
        spans = by_name.setdefault((event.name, event.color), [])
        if spans and event.begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], event.end))
        else:
            spans.append((event.begin, event.end))
    return [(color, *span) for (_, color), spans in by_name.items() for span in spans]


def _event_markers(events: Iterable[Event]) -> dict[str, Any]:
    """Triangles at the foot of the lines; pointing at one shows what happened."""
    listed = list(events)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [plot_time(event.begin) for event in listed],
        "y": [0.0] * len(listed),
        "yaxis": _EVENTS_AXIS,
        "text": [plot_text(f"{event.name}: {event.heading}") for event in listed],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "symbol": "triangle-up",
            "size": 9,
            "color": [plot_color(event.color) for event in listed],
        },
        "cliponaxis": False,
    }
