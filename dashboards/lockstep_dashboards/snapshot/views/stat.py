"""Single values: large, in the colour of their threshold, over their course; and as bars."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from lockstep_dashboards.snapshot.answers import Frame, PanelAnswer
from lockstep_dashboards.snapshot.fields import field_of
from lockstep_dashboards.snapshot.views.drawing import Drawing, Scene

_MAX_STATS, _MAX_BARS = 12, 50
_WIDTH, _HEIGHT = 100.0, 30.0  # of the curve, in units of its own
_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "lastNotNull": lambda values: values[-1],
    "last": lambda values: values[-1],
    "first": lambda values: values[0],
    "firstNotNull": lambda values: values[0],
    "max": max,
    "min": min,
    "mean": fmean,
    "sum": sum,
    "range": lambda values: max(values) - min(values),
    "count": len,
}


def draw(answer: PanelAnswer, scene: Scene) -> Drawing:
    """One large value a series."""
    del scene
    panel = answer.panel
    frames = answer.frames[:_MAX_STATS]
    text_mode = panel.options.get("textMode", "auto")
    has_names = text_mode in {"value_and_name", "name"} or (text_mode == "auto" and len(frames) > 1)
    has_curve = panel.options.get("graphMode", "area") != "none"
    is_colored = panel.options.get("colorMode", "value") != "none"
    stats: list[dict[str, Any]] = []
    for frame in frames:
        field = field_of(panel, frame.name, ref_id=frame.target.ref_id)
        reading = field.display(reduced(answer, frame))
        stats.append(
            {
                "text": reading.text,
                "color": reading.color if is_colored else "var(--ink)",
                "name": frame.name if has_names else "",
                "curves": _curves(frame.values) if has_curve else [],
            }
        )
    return Drawing(view="stat", content={"stats": stats, "num": len(stats)})


def draw_bars(answer: PanelAnswer, scene: Scene) -> Drawing:
    """One bar a series, from the field's minimum to its maximum or the largest value."""
    del scene
    panel = answer.panel
    frames = answer.frames[:_MAX_BARS]
    readings = [(frame, reduced(answer, frame)) for frame in frames]
    values = [value for _, value in readings if value is not None]
    bars: list[dict[str, Any]] = []
    for frame, value in readings:
        field = field_of(panel, frame.name, ref_id=frame.target.ref_id)
        low, high = field.number("min") or 0.0, field.number("max")
        high = max(values, default=1.0) if high is None else high
        reading = field.display(value)
        part = 0.0 if value is None or high <= low else (value - low) / (high - low)
        bars.append(
            {
                "name": frame.name,
                "text": reading.text,
                "color": reading.color,
                "percent": round(100 * min(max(part, 0.0), 1.0), 2),
            }
        )
    return Drawing(view="bars", content={"bars": bars})


def reduced(answer: PanelAnswer, frame: Frame) -> float | None:
    """The single value of a series, by the panel's options; the last by default."""
    calculations = answer.panel.options.get("reduceOptions", {}).get("calcs") or ["lastNotNull"]
    values = [value for value in frame.values if value is not None]
    reduction = _REDUCTIONS.get(str(calculations[0]), _REDUCTIONS["lastNotNull"])
    return float(reduction(values)) if values else None


def _curves(values: Sequence[float | None]) -> list[str]:
    """Points of the lines below a value, for SVG; a gap begins a new line."""
    present = [value for value in values if value is not None]
    if len(present) < 2:  # noqa: PLR2004  # a line has two ends
        return []
    low, high = min(present), max(present)
    if high == low:
        low, high = low - 1, high + 1
    curves: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            curves.append([])
            continue
        x = _WIDTH * index / (len(values) - 1)
        y = _HEIGHT - 1 - (_HEIGHT - 2) * (value - low) / (high - low)
        curves[-1].append(f"{x:.1f},{y:.1f}")
    return [" ".join(points) for points in curves if len(points) > 1]
