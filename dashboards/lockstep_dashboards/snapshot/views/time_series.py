"""Lines and stacked areas over time."""

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep_dashboards.snapshot.answers import Frame, PanelAnswer
from lockstep_dashboards.snapshot.colors import area_colors, series_styles
from lockstep_dashboards.snapshot.fields import Field, field_of
from lockstep_dashboards.snapshot.units import Scale, scale_of
from lockstep_dashboards.snapshot.views.drawing import (
    Drawing,
    LegendEntry,
    Scene,
    figure,
    plot_color,
    plot_text,
    rounded,
    time_grid,
)

_FLAT_RATIO = 1e-6
_TO_ZERO_RATIO = 0.5


def draw(answer: PanelAnswer, scene: Scene) -> Drawing:
    """One line a series; a unit of its own, or a place on the right, has a second axis."""
    panel = answer.panel
    frames = [frame for frame in answer.frames if frame.last is not None]
    fields = [field_of(panel, frame.name, ref_id=frame.target.ref_id) for frame in frames]
    default = field_of(panel)
    right = [_is_right(field, default) for field in fields]
    if all(right):
        right = [False] * len(right)
    left_scale = _scale(frames, fields, right, is_right=False)
    right_scale = _scale(frames, fields, right, is_right=True)
    traces, legend = [], []
    styles = _styles(frames, fields)
    for number, (frame, field, style) in enumerate(zip(frames, fields, styles, strict=True)):
        scale = right_scale if right[number] else left_scale
        color = _fixed_color(field) or style[0]
        axis = {"yaxis": "y2"} if right[number] else {}
        traces.append(_trace(frame, field, scale, (color, style[1]), scene) | axis)
        value = "" if frame.last is None else field.display(frame.last).text
        legend.append(
            LegendEntry(name=frame.name, color=color, dash=style[1], value=value, trace=number)
        )
    layout: dict[str, Any] = {"shapes": _threshold_lines(default, left_scale)}
    if any(right):
        axis_range = _range([x for x, is_right in zip(frames, right, strict=True) if is_right], {})
        layout["yaxis2"] = {
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "automargin": True,
            "zeroline": False,
            "ticksuffix": plot_text(right_scale.suffix),
        } | axis_range
    y_axis = _y_axis(frames, fields, right, default, left_scale)
    return Drawing(
        view="figure", figure=figure(scene, panel, traces, y_axis, **layout), legend=tuple(legend)
    )


def _is_right(field: Field, default: Field) -> bool:
    return field.custom("axisPlacement") == "right" or field.unit != default.unit


def _fixed_color(field: Field) -> str:
    """The colour that a field is given by itself; empty where the palette decides."""
    if field.settings.get("color.mode") != "fixed":
        return ""
    return plot_color(str(field.settings.get("color.fixedColor", "")))


def _styles(frames: Sequence[Frame], fields: Sequence[Field]) -> list[tuple[str, str]]:
    """Colour and dash of each series; in a stack, areas that have a size choose first."""
    if not any(_mode_of_stack(field) != "none" for field in fields):
        return series_styles(len(frames))
    order = sorted(range(len(frames)), key=lambda number: not any(frames[number].values))
    colors = dict(zip(order, area_colors(len(frames)), strict=True))
    return [(colors[number], "solid") for number in range(len(frames))]


def _mode_of_stack(field: Field) -> str:
    return str((field.custom("stacking") or {}).get("mode", "none"))


def _scale(
    frames: Sequence[Frame], fields: Sequence[Field], right: Sequence[bool], *, is_right: bool
) -> Scale:
    """The scale of an axis, by the highest value that is drawn on it."""
    members = [
        (frame, field)
        for frame, field, side in zip(frames, fields, right, strict=True)
        if side == is_right
    ]
    stacked = [frame for frame, field in members if _mode_of_stack(field) != "none"]
    highest = max(
        (abs(value) for frame, _ in members for value in frame.values if value is not None),
        default=0.0,
    )
    columns = zip(*(frame.values for frame in stacked), strict=False)
    sums = (sum(value or 0.0 for value in column) for column in columns)
    unit = members[0][1].unit if members else "short"
    return scale_of(unit, max(highest, *sums) if stacked else highest)


def _trace(
    frame: Frame, field: Field, scale: Scale, style: tuple[str, str], scene: Scene
) -> dict[str, Any]:
    color, dash = style
    values = [rounded(value, scale.divisor) for value in frame.values]
    stacking = _mode_of_stack(field)
    hover = f"{scale.prefix}%{{y:.4~g}}{scale.suffix}<extra>%{{fullData.name}}</extra>"
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if _has_lone_point(frame.values) else "lines",
        "name": plot_text(frame.name),
        "y": values,
        "line": {"color": color, "dash": dash, "width": 1.6},
        "marker": {"color": color, "size": 4},
        "hovertemplate": hover,
    } | time_grid(scene.window)
    if field.custom("drawStyle") == "bars":
        trace = {name: part for name, part in trace.items() if name not in {"mode", "line"}}
        trace |= {"type": "bar"}
    elif field.custom("drawStyle") == "points":
        trace["mode"] = "markers"
    elif stacking != "none":
        percent = {"groupnorm": "percent"} if stacking == "percent" else {}
        line = {"color": color, "width": 0.5}
        trace |= {"stackgroup": "stack", "line": line, "fillcolor": color, **percent}
    return trace


def _has_lone_point(values: Sequence[float | None]) -> bool:
    """Whether a value has no neighbour, so that no line leads to it."""
    padded = (None, *values, None)
    return any(
        value is not None and padded[index] is None and padded[index + 2] is None
        for index, value in enumerate(values)
    )


def _threshold_lines(field: Field, scale: Scale) -> list[dict[str, Any]]:
    mode = (field.custom("thresholdsStyle") or {}).get("mode", "off")
    if mode == "off":
        return []
    dash = "dash" if "dashed" in mode else "solid"
    return [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": value / scale.divisor,
            "y1": value / scale.divisor,
            "line": {"color": plot_color(color), "width": 1.5, "dash": dash},
        }
        for value, color in field.thresholds
        if value is not None
    ]


def _y_axis(
    frames: Sequence[Frame],
    fields: Sequence[Field],
    right: Sequence[bool],
    default: Field,
    scale: Scale,
) -> dict[str, Any]:
    members = [frame for frame, is_right in zip(frames, right, strict=True) if not is_right]
    stacked = any(_mode_of_stack(field) != "none" for field in fields)
    axis: dict[str, Any] = {
        "tickprefix": plot_text(scale.prefix),
        "ticksuffix": plot_text(scale.suffix),
    }
    low, high = default.number("min"), default.number("max")
    if low is not None or high is not None:
        ends = [None if end is None else end / scale.divisor for end in (low, high)]
        return axis | {"range": ends, "autorange": _auto_range(low, high)}
    return axis | ({"rangemode": "tozero"} if stacked else _range(members, {}, scale.divisor))


def _auto_range(low: float | None, high: float | None) -> bool | str:
    """Plotly's word for the end of an axis that the data decide."""
    if low is not None and high is not None:
        return False
    return "max" if high is None else "min"


def _range(
    frames: Sequence[Frame], axis: Mapping[str, Any], divisor: float = 1.0
) -> dict[str, Any]:
    """From zero where that costs little height; a flat line has some room around it."""
    values = [value for frame in frames for value in frame.values if value is not None]
    low, high = min(values, default=0.0) / divisor, max(values, default=0.0) / divisor
    if high - low <= _FLAT_RATIO * max(abs(low), abs(high)):
        room = abs(high) or 1.0
        return {**axis, "range": [min(0.0, 1.5 * low), high + 0.5 * room if high >= 0 else 0.0]}
    if 0 <= low <= _TO_ZERO_RATIO * high:
        return {**axis, "rangemode": "tozero"}
    return {**axis, "rangemode": "normal"}
