"""Heat maps: the buckets of a histogram over time, or rows such as ranks over time."""

import math
import re
from collections.abc import Sequence
from typing import Any

from lockstep_dashboards.snapshot.answers import Frame, PanelAnswer
from lockstep_dashboards.snapshot.colors import heat_scale
from lockstep_dashboards.snapshot.fields import field_of
from lockstep_dashboards.snapshot.units import scale_of, value_text
from lockstep_dashboards.snapshot.views.drawing import (
    Drawing,
    Scene,
    figure,
    message,
    plot_text,
    rounded,
    row_ticks,
    time_grid,
)

_POINTS_WITH_GAPS, _ROWS_WITH_GAPS = 60, 32  # among more, gaps would be half of the picture
_EMPTY = 1e-9  # a bucket below it counts as empty, as in Grafana's own heat maps

Row = tuple[str, list[float | None]]


def draw(answer: PanelAnswer, scene: Scene) -> Drawing:
    """Rows of cells; small buckets are at the bottom, and the first rank is at the top."""
    panel = answer.panel
    frames = [frame for frame in answer.frames if frame.last is not None]
    field = field_of(panel)
    is_histogram = all("le" in frame.labels for frame in frames)
    row_unit = str(panel.options.get("yAxis", {}).get("unit") or field.unit)
    rows = _buckets(frames, row_unit) if is_histogram else _rows(frames)
    if not rows:
        return message("Every bucket is empty in this window.")
    unit = "short" if is_histogram else field.unit
    values = [value for _, cells in rows for value in cells if value is not None]
    scale = scale_of(unit, max(map(abs, values), default=0.0))
    colors = panel.options.get("color", {})
    stops = heat_scale(str(colors.get("scheme", "")), float(colors.get("exponent") or 1.0))
    trace = {
        "type": "heatmap",
        "z": [[rounded(value, scale.divisor) for value in cells] for _, cells in rows],
        "y": [plot_text(name) for name, _ in rows],
        "colorscale": [[stop, color] for stop, color in stops],
        "hoverongaps": False,
        "xgap": 0.5 if scene.window.num_points <= _POINTS_WITH_GAPS else 0,
        "ygap": 1 if len(rows) <= _ROWS_WITH_GAPS else 0,
        "colorbar": _color_bar(scale.suffix),
        "hovertemplate": f"%{{x}}<br>%{{y}}<br>%{{z:.4~g}}{scale.suffix}<extra></extra>",
    } | time_grid(scene.window)
    y_axis: dict[str, Any] = {"type": "category", "showgrid": False}
    if not is_histogram:
        y_axis["autorange"] = "reversed"
    y_axis |= row_ticks(len(rows), panel)
    return Drawing(view="figure", figure=figure(scene, panel, [trace], y_axis, hovermode="closest"))


def _color_bar(suffix: str) -> dict[str, Any]:
    return {
        "thickness": 10,
        "outlinewidth": 0,
        "nticks": 5,
        "ticksuffix": plot_text(suffix),
        "xpad": 4,
    }


def _buckets(frames: Sequence[Frame], unit: str) -> list[Row]:
    """What falls into each bucket alone, from the cumulative counts; empty outer ones left out."""
    ordered = sorted(frames, key=lambda frame: float(frame.labels["le"]))
    rows: list[Row] = []
    below: Sequence[float | None] = [0.0] * max((len(frame.values) for frame in frames), default=0)
    for frame in ordered:
        bound = float(frame.labels["le"])
        name = "more" if math.isinf(bound) else f"≤ {value_text(bound, unit)}"
        cells = [_difference(*pair) for pair in zip(frame.values, below, strict=True)]
        rows.append((name, cells))
        below = frame.values
    filled = [number for number, (_, cells) in enumerate(rows) if any(cells)]
    return rows[filled[0] : filled[-1] + 1] if filled else []


def _difference(value: float | None, below: float | None) -> float | None:
    """The count between two bounds; an empty cell stays without colour."""
    if value is None:
        return None
    count = value - (below or 0.0)
    return count if count > _EMPTY else None


def _rows(frames: Sequence[Frame]) -> list[Row]:
    return [
        (frame.name, list(frame.values))
        for frame in sorted(frames, key=lambda frame: natural(frame.name))
    ]


def natural(text: str) -> list[tuple[int, str]]:
    """A key by which numbers within a text sort as numbers: rank 2 before rank 10."""
    parts = re.split(r"([0-9]+)", text)
    return [(int(part) if part.isdecimal() else -1, part) for part in parts]
