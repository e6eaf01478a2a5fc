"""What a view makes of a panel's answers: values for a template, or a figure of plotly."""

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lockstep_dashboards.snapshot.answers import Event
from lockstep_dashboards.snapshot.colors import css_color
from lockstep_dashboards.snapshot.variables import Choice
from lockstep_dashboards.snapshot.window import Window

GREY = "#8c8c8c"
_MAX_EVENTS = 100
_DIGITS = 6
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
                "nticks": 8,
            },
            "yaxis": _AXIS | {"nticks": 6} | dict(y_axis),
            "yaxis9": hidden,
            "shapes": [*_event_shapes(events, window), *shapes],
            "showlegend": False,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "inherit", "size": 12},
            "hovermode": "x unified",
            "hoverlabel": {"namelength": 60},
        }
        | layout,
    }


def _event_shapes(events: Iterable[Event], window: Window) -> list[dict[str, Any]]:
    """A line where each event begins, and a region as long as it lasts."""
    shapes: list[dict[str, Any]] = []
    for event in events:
        color, begin = plot_color(event.color), plot_time(event.begin)
        over_height = {"xref": "x", "yref": "paper", "x0": begin, "y0": 0, "y1": 1}
        line = {"color": color, "width": 1.5, "dash": "dot"}
        if event.end - event.begin > window.step_seconds:
            region = {"type": "rect", "x1": plot_time(event.end), "fillcolor": color}
            shapes.append(over_height | region | {"opacity": 0.13, "line": {"width": 0}})
        shapes.append(over_height | {"type": "line", "x1": begin, "line": line})
    return [shape | {"layer": "below"} for shape in shapes]


def _event_markers(events: Iterable[Event]) -> dict[str, Any]:
    """Triangles at the foot of the lines; pointing at one shows what it stands for."""
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
