"""State timelines: a bar for each series, in the colour of its state."""

from collections.abc import Iterator, Sequence

from lockstep_dashboards.snapshot.answers import Frame, PanelAnswer
from lockstep_dashboards.snapshot.colors import INK, SERIES
from lockstep_dashboards.snapshot.fields import Reading, field_of
from lockstep_dashboards.snapshot.views.drawing import (
    GREY,
    Drawing,
    LegendEntry,
    Scene,
    figure,
    plot_text,
    plot_time,
    row_ticks,
)
from lockstep_dashboards.snapshot.views.heat_map import natural
from lockstep_dashboards.snapshot.window import Window

_ROW_HEIGHT = 0.85

Segment = tuple[str, float, float]
"""The row, the begin in seconds since the epoch, the duration in seconds."""


def draw(answer: PanelAnswer, scene: Scene) -> Drawing:
    """One row a series; one trace a state, so that the legend has each state once."""
    frames = [frame for frame in answer.frames if frame.last is not None]
    frames.sort(key=lambda frame: natural(frame.name))
    by_state: dict[Reading, list[Segment]] = {}
    for frame in frames:
        field = field_of(answer.panel, frame.name, ref_id=frame.target.ref_id)
        for value, begin, seconds in _segments(frame, scene.window):
            by_state.setdefault(field.display(value), []).append((frame.name, begin, seconds))
    traces, legend = [], []
    for number, (state, segments) in enumerate(by_state.items()):
        color = _color(state, number)
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": plot_text(state.text),
                "y": [plot_text(row) for row, _, _ in segments],
                "base": [plot_time(begin) for _, begin, _ in segments],
                "x": [seconds * 1000 for _, _, seconds in segments],
                "width": _ROW_HEIGHT,
                "marker": {"color": color, "line": {"width": 0}},
                "hovertemplate": "%{y}: %{fullData.name}<br>from %{base|%H:%M:%S}<extra></extra>",
            }
        )
        legend.append(LegendEntry(name=state.text, color=color, trace=number))
    rows = list(dict.fromkeys(plot_text(frame.name) for frame in frames))
    y_axis = {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": rows,
        "range": [len(rows) - 0.5, -0.5],
        "showgrid": False,
    } | row_ticks(len(rows), answer.panel)
    drawn = figure(scene, answer.panel, traces, y_axis, hovermode="closest", barmode="overlay")
    return Drawing(view="figure", figure=drawn, legend=tuple(legend))


def _color(state: Reading, number: int) -> str:
    if not state.color.startswith("var("):
        return state.color
    return SERIES[number % len(SERIES)] if state.color == INK else GREY


def _segments(frame: Frame, window: Window) -> Iterator[tuple[float, float, float]]:
    """Value, begin and duration of each stretch of equal values; a gap ends one."""
    values: Sequence[float | None] = (*frame.values, None)
    first = 0
    for index in range(1, len(values)):
        if values[index] == values[first]:
            continue
        value = values[first]
        if value is not None:
            begin = window.begin + first * window.step_seconds
            yield value, begin, (index - first) * window.step_seconds
        first = index
