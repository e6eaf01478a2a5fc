"""The figures of a page on steps, by plotly: heat map, step times, work against waiting."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_catalogue.palette import BLUE, GREEN, ORANGE, PURPLE, SKY, YELLOW
from lockstep_reports import nan_stats
from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.arrays import Integers, Matrix, Seconds
from lockstep_reports.document.published import heat_map_quantity
from lockstep_reports.recording.operations import BACKWARD, FORWARD, GARBAGE, OPTIMIZER
from lockstep_reports.whatif.analysis import WhatIf
from lockstep_reports.whatif.graph import Grid
from lockstep_reports.whatif.scenarios import ideal_times

INK, GRID, ACCENT, QUIET = "#1c2733", "#e3e8ee", "#a3264a", "#8a97a6"
# One hue path, light to dark in even steps of lightness, so that it also reads in grey.
LATENESS_SCALE = ["#fbf6ea", "#fbdc9d", "#f6ab5e", "#dd6a4c", "#a3264a", "#4a0d3f"]
# Waiting is grey.
PHASE_COLOURS = {
    "data": SKY,
    "forward": BLUE,
    "backward": GREEN,
    "sync": "#d5dbe2",
    "optimizer": ORANGE,
    "checkpoint": PURPLE,
    "eval": YELLOW,
    "other": "#7f7f7f",
}
LAYOUT: dict[str, Any] = {
    "template": "plotly_white",
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
    "margin": {"l": 64, "r": 24, "t": 16, "b": 48},
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
}


_MAX_BARS, _MAX_STAGES = 24, 16
_LABEL_AND_COLOUR = {
    FORWARD: ("forward", PHASE_COLOURS["forward"]),
    BACKWARD: ("backward", PHASE_COLOURS["backward"]),
    OPTIMIZER: ("optimizer", PHASE_COLOURS["optimizer"]),
    GARBAGE: ("garbage collection", PHASE_COLOURS["other"]),
}
_COMMUNICATION = ("communication", PHASE_COLOURS["sync"])


def _slowed_by(what_if: WhatIf) -> go.Figure:
    """Bars in three groups: slowdown in percent when all but one type, stage or rank are ideal."""
    mean = what_if.ideal_seconds.mean()
    rank = what_if.model.grid.rank.ravel()
    groups = {
        "operation": [(name, values.mean() / mean) for name, values in what_if.by_type.items()],
        "stage": [(f"stage {n}", row.mean() / mean) for n, row in enumerate(what_if.by_stage)],
        "rank": [
            (f"rank {rank[index]}", what_if.worker_slowdown.flat[index])
            for index in np.argsort(-what_if.worker_slowdown, axis=None, kind="stable")[:_MAX_BARS]
        ],
    }
    figure = make_subplots(rows=1, cols=3, horizontal_spacing=0.12)
    max_bars = 1
    for column, (title, bars) in enumerate(groups.items(), start=1):
        longest = sorted(bars, key=lambda bar: -bar[1])[:_MAX_BARS]
        max_bars = max(max_bars, len(longest))
        figure.add_bar(
            x=[round(100 * (slowdown - 1), 3) for _, slowdown in longest],
            y=[name for name, _ in longest],
            orientation="h",
            marker={"color": [ACCENT if bar == longest[0] else QUIET for bar in longest]},
            hovertemplate="%{y}: %{x:.2f} % longer than ideal<extra></extra>",
            row=1,
            col=column,
        )
        figure.update_xaxes(title=f"% by {title} alone", gridcolor=GRID, row=1, col=column)
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(**LAYOUT, showlegend=False, height=max(220, 90 + 22 * max_bars))
    return figure


def _timeline(what_if: WhatIf) -> go.Figure:
    """The slowest replica in its median step: each stage as recorded, the ideal one below it."""
    grid = what_if.model.grid
    # The replica that holds up the others.
    replica = int(np.argmax(what_if.by_replica.mean(axis=1)))
    # The median step by index: a mean of two steps has no operations to draw.
    step = int(np.argsort(what_if.seconds)[len(what_if.seconds) // 2])
    begin, end = ideal_times(what_if.model)
    recorded = grid.start[:, replica, step], grid.duration[:, replica, step]
    figure = go.Figure()
    for name in (*_LABEL_AND_COLOUR, None):
        is_of_type = grid.select_type(name) if name else ~grid.select_type(*_LABEL_AND_COLOUR)
        ops = np.flatnonzero(is_of_type & (grid.stage < _MAX_STAGES) & (grid.shard == 0))
        label, colour = _LABEL_AND_COLOUR.get(name or "", _COMMUNICATION)
        if len(ops):
            times = {"recorded": recorded, "ideal": (begin, end - begin)}
            _add_bars(figure, grid, ops, label=label, colour=colour, times=times)
    num_stages = min(grid.stages, _MAX_STAGES)
    lines = [f"stage {s}, {kind}" for s in range(num_stages) for kind in ("recorded", "ideal")]
    figure.update_layout(
        **LAYOUT, barmode="overlay", bargap=0.15, height=min(900, 130 + 26 * len(lines))
    )
    figure.update_xaxes(
        title=f"ms into step {grid.steps[step]}, replica {grid.replicas[replica]}", gridcolor=GRID
    )
    figure.update_yaxes(categoryorder="array", categoryarray=lines[::-1])
    return figure


def _add_bars(
    figure: go.Figure,
    grid: Grid,
    ops: Integers,
    *,
    label: str,
    colour: str,
    times: dict[str, tuple[Seconds, Seconds]],
) -> None:
    """Adds bars of some operations; times are begin and duration of all: seconds, [operations]."""
    lines: list[str] = []
    bases: list[float] = []
    lengths: list[float] = []
    for kind, (begin, seconds) in times.items():
        lines += [f"stage {stage}, {kind}" for stage in grid.stage[ops].tolist()]
        bases += (begin[ops] * 1e3).round(3).tolist()
        lengths += (seconds[ops] * 1e3).round(3).tolist()
    figure.add_bar(
        x=lengths,
        y=lines,
        base=bases,
        name=label,
        orientation="h",
        marker={"color": colour, "line": {"width": 0.5, "color": "#ffffff"}},
        # One label per bar; each operation is drawn twice, recorded and ideal.
        customdata=[grid.types[number] for number in grid.type_of[ops].tolist()] * 2,
        hovertemplate="%{customdata}: %{x:.2f} ms from %{base:.2f}<extra>%{y}</extra>",
    )


WHAT_IF_FIGURES = {"slowed_by": _slowed_by, "timeline": _timeline}
"""How each figure is drawn, by its name."""


# Bounds the page to a few megabytes, whatever the length of the job.
MAX_COLUMNS, MAX_ROWS = 2000, 256
_DARKEST_STEP_RATIO = 0.25  # a run without this lateness anywhere stays pale
# With more ranks a label on each row would overlap its neighbours.
_LABELLED_RANKS = 32
_LONG_GAP = 16  # times as many steps as between most columns
_SPACE_ABOVE = 1.5
_LONG_STEP_SECONDS = 10.0
_COLOUR_BAR = {"thickness": 12, "outlinewidth": 0, "xpad": 4}
_CONFIG = {"displaylogo": False, "responsive": True, "displayModeBar": False}


def draw_figure(name: str, analysis: StepAnalysis) -> str:
    """A figure as an HTML fragment, which needs the script of plotly before it in the page."""
    if name in WHAT_IF_FIGURES:
        assert analysis.replayed is not None
        assert analysis.replayed.what_if is not None
        figure = WHAT_IF_FIGURES[name](analysis.replayed.what_if)
    else:
        draw = {"heat_map": _heat_map, "step_times": _step_times, "phases": _phases}[name]
        figure = draw(analysis)
    html: str = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=f"figure-{name}", config=_CONFIG
    )
    return html


def binned(values: Matrix, max_bins: int, axis: int) -> Matrix:
    """Means of neighbours along an axis, so that at most ``max_bins`` are left; NaN is ignored."""
    size = -(-values.shape[axis] // max_bins)
    if size <= 1:
        return values
    # The last bin is filled up with NaN, which its mean leaves out.
    num_missing = -values.shape[axis] % size
    pad = [(0, num_missing if at == axis % values.ndim else 0) for at in range(values.ndim)]
    padded = np.pad(values, pad, constant_values=np.nan)
    shape = list(padded.shape)
    shape[axis : axis + 1] = [shape[axis] // size, size]
    return nan_stats.mean(padded.reshape(shape), axis=axis + 1)


def _heat_map(analysis: StepAnalysis) -> go.Figure:
    num_ranks, parts, quantity = len(analysis.steps.ranks), [], heat_map_quantity(analysis)
    size = -(-num_ranks // MAX_ROWS)
    for first in range(0, num_ranks, size):
        rows = slice(first, first + size)
        values, least_maximum, unit, hover_text = _cells(analysis, quantity, rows)
        parts.append(binned(binned(values, MAX_COLUMNS, 1), 1, 0))
    cells = np.concatenate(parts)
    num_rows, num_columns = cells.shape
    cells, columns = _leave_gaps(cells, _first_of_bins(analysis.steps.numbers, num_columns))
    # The 99.5th percentile: one pause of seconds would leave all other cells white.
    top = max(least_maximum, nan_stats.quantile_number(cells, 0.995) or 0.0)
    figure = go.Figure(
        go.Heatmap(
            # Half the bytes in the page, and six digits are more than a colour shows.
            z=cells.astype(np.float32),
            x=columns,
            y=_first_of_bins(np.array(analysis.steps.ranks), num_rows),
            zmin=0,
            zmax=top,
            colorscale=LATENESS_SCALE,
            colorbar={"title": {"text": unit, "side": "right"}, **_COLOUR_BAR},
            hovertemplate="step %{x}<br>rank %{y}<br>%{z:.1f} " + hover_text + "<extra></extra>",
        )
    )
    figure.update_layout(**LAYOUT, height=min(640, max(240, 90 + 22 * num_rows)))
    figure.update_xaxes(title="step", showgrid=False)
    tick = {"dtick": 1} if num_rows <= _LABELLED_RANKS else {}
    figure.update_yaxes(title="rank", autorange="reversed", showgrid=False, zeroline=False, **tick)
    _outline_episodes(figure, analysis)
    return figure


def _leave_gaps(cells: Matrix, columns: list[int]) -> tuple[Matrix, list[int]]:
    """Cells [ranks, columns] and their steps, with empty columns where many steps are not there.

    Each column is drawn half way to the next one.
    """
    widths = np.diff(columns)
    usual = int(np.median(widths)) if len(widths) else 0
    after = np.flatnonzero(widths > _LONG_GAP * usual) + 1
    # One empty column behind what is there, one before what comes.
    begins, ends = np.take(columns, after - 1) + usual, np.take(columns, after) - usual
    places = np.repeat(after, 2)
    steps: list[int] = np.insert(columns, places, np.stack([begins, ends], 1).ravel()).tolist()
    return np.insert(cells, places, np.nan, axis=1), steps


def _cells(analysis: StepAnalysis, quantity: str, rows: slice) -> tuple[Matrix, float, str, str]:
    """What the heat map draws [some ranks, steps], the least drawn darkest, and their unit.

    Last comes the text after a value when the reader points at it.
    """
    if quantity == "lateness":
        darkest = _DARKEST_STEP_RATIO * analysis.scores.median_step_seconds * 1e3
        lateness = analysis.scores.lateness[rows, :] * 1e3
        return lateness, nan_stats.number(darkest) or 0.0, "ms late", "ms late"
    seconds = analysis.steps.seconds[rows]
    median = nan_stats.median(seconds, axis=1)[:, None]
    beyond = np.maximum(100 * (seconds / np.where(median > 0, median, np.nan) - 1), 0.0)
    return beyond, 100 * _DARKEST_STEP_RATIO, "% longer", "% longer than its median"


def _outline_episodes(figure: go.Figure, analysis: StepAnalysis) -> None:
    for episode in analysis.episodes:
        for rank in episode.ranks[:MAX_ROWS]:
            figure.add_shape(
                type="rect",
                # Cells are centred on their step and rank.
                x0=episode.start_step - 0.5,
                x1=episode.end_step + 0.5,
                y0=rank - 0.5,
                y1=rank + 0.5,
                line={"color": INK, "width": 2},
            )


def _step_times(analysis: StepAnalysis) -> go.Figure:
    is_long = (nan_stats.number(analysis.scores.median_step_seconds) or 0.0) >= _LONG_STEP_SECONDS
    unit, factor = ("s", 1.0) if is_long else ("ms", 1e3)
    actual = analysis.scores.step_seconds * factor
    lost = np.zeros_like(actual)
    # The curve shows single steps, the loss sums over those of a column.
    steps_per_column = analysis.steps.sum_over_columns(np.ones_like(actual))
    for episode in analysis.episodes:
        lost[episode.columns] += episode.lost_by_step / steps_per_column[episode.columns] * factor
    numbers = analysis.steps.numbers
    if (thinned := analysis.recording.thinned) is not None:
        order = np.argsort(every := np.append(numbers, thinned.first), kind="stable")
        numbers = every[order]
        actual = np.append(actual, thinned.medians["step"] * factor)[order]
        lost = np.append(lost, np.zeros(len(thinned.first)))[order]
    measured, ideal = binned(actual, MAX_COLUMNS, 0), binned(actual - lost, MAX_COLUMNS, 0)
    bins = _first_of_bins(numbers, len(measured))
    figure = go.Figure()
    if analysis.episodes:
        figure.add_scatter(
            x=bins, y=ideal, name="without the episodes", line={"color": QUIET, "width": 1.2}
        )
    figure.add_scatter(x=bins, y=measured, name="measured", line={"color": BLUE, "width": 1.4})
    for episode in analysis.episodes:
        figure.add_vrect(
            x0=episode.start_step, x1=episode.end_step, fillcolor=ACCENT, opacity=0.12, line_width=0
        )
    figure.update_layout(**LAYOUT, height=280)
    figure.update_xaxes(title="step", gridcolor=GRID)
    # A single long step would press the curve flat; it is cut off instead.
    top = _SPACE_ABOVE * (nan_stats.quantile_number(measured, 0.98) or 1.0)
    figure.update_yaxes(title=f"{unit} a step", range=[0, top], gridcolor=GRID)
    return figure


def _phases(analysis: StepAnalysis) -> go.Figure:
    summaries = analysis.ranks[:MAX_ROWS]
    figure = go.Figure()
    ranks = [f"rank {summary.rank}" for summary in summaries]
    # Waiting comes last: the bars before it show each rank's own work from one line.
    for phase in (*(name for name in STEP_PHASES if name != "sync"), "sync"):
        seconds = [summary.phase_seconds[phase] or 0.0 for summary in summaries]
        if any(seconds):
            figure.add_bar(
                y=ranks,
                x=[value * 1e3 for value in seconds],
                name="sync (waits)" if phase == "sync" else phase,
                orientation="h",
                marker={
                    "color": PHASE_COLOURS[phase],
                    "pattern": {"shape": "/" if phase == "sync" else "", "fgcolor": QUIET},
                },
                hovertemplate="%{y}: %{x:.1f} ms " + phase + "<extra></extra>",
            )
    figure.update_layout(
        **LAYOUT, barmode="stack", bargap=0.25, height=min(900, 120 + 30 * len(summaries))
    )
    figure.update_xaxes(title="mean ms a step", gridcolor=GRID)
    figure.update_yaxes(autorange="reversed", title=None)
    return figure


def _first_of_bins(values: Integers, count: int) -> list[int]:
    first: list[int] = values[:: max(1, -(-len(values) // max(1, count)))].tolist()
    return first
