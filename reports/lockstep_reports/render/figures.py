"""The pictures of the page, by plotly: heat map, step times, and work against waiting."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from lockstep_catalogue.labels import STEP_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.render.missing_reasons import why_no_phases
from lockstep_reports.render.palette import (
    ACCENT,
    GRID,
    INK,
    LATENESS_SCALE,
    LAYOUT,
    PHASE_COLOURS,
    QUIET,
)
from lockstep_reports.render.whatif_figures import draw
from lockstep_reports.report import Report

MAX_COLUMNS, MAX_LINES = 2000, 256
_DARKEST_STEP_RATIO = 0.25  # a run without this lateness anywhere stays pale
_LABELLED_RANKS = 32
_SPACE_ABOVE = 1.5
_LONG_STEP_SECONDS = 10.0
_CONFIG = {"displaylogo": False, "responsive": True, "displayModeBar": False}


def plotly_script() -> str:
    """The library itself, to be put into the page once."""
    return str(get_plotlyjs())


def figures(report: Report) -> dict[str, str]:
    """HTML fragments by name; they need the script of ``plotly_script`` before them."""
    drawn: dict[str, go.Figure] = {}
    if shown_as(report) != "nothing":
        drawn["heat_map"] = _heat_map(report)
    if len(report.steps.numbers) > 1:
        drawn["step_times"] = _step_times(report)
    if why_no_phases(report) is None:
        drawn["phases"] = _phases(report)
    if report.replayed is not None and report.replayed.what_if is not None:
        drawn |= draw(report.replayed.what_if)
    return {
        name: figure.to_html(
            full_html=False, include_plotlyjs=False, div_id=f"figure-{name}", config=_CONFIG
        )
        for name, figure in drawn.items()
    }


def shown_as(report: Report) -> str:
    """What the heat map shows: lateness, own times beyond their median, or nothing."""
    several = len(report.steps.members) > 1 and len(report.steps.numbers) > 1
    if several and not np.isnan(report.scores.lateness).all():
        return "lateness"
    return "own" if several and not np.isnan(report.steps.seconds).all() else "nothing"


def binned(values: Matrix, most: int, axis: int) -> Matrix:
    """Means of neighbours along an axis, so that at most so many are left."""
    size = -(-values.shape[axis] // most)
    if size <= 1:
        return values
    short = -values.shape[axis] % size
    pad = [(0, short if at == axis % values.ndim else 0) for at in range(values.ndim)]
    padded = np.pad(values, pad, constant_values=np.nan)
    shape = list(padded.shape)
    shape[axis : axis + 1] = [shape[axis] // size, size]
    return nan_stats.mean(padded.reshape(shape), axis=axis + 1)


def _heat_map(report: Report) -> go.Figure:
    values, quiet, unit, said = _cells(report)
    cells = binned(binned(values, MAX_COLUMNS, 1), MAX_LINES, 0)
    lines, columns = cells.shape
    top = max(quiet, nan_stats.number(nan_stats.quantile(cells, 0.995)) or 0.0)
    figure = go.Figure(
        go.Heatmap(
            z=cells.astype(np.float32),
            x=_thinned(report.steps.numbers, columns),
            y=_thinned(np.array(report.steps.ranks), lines),
            zmin=0,
            zmax=top,
            colorscale=LATENESS_SCALE,
            colorbar={
                "title": {"text": unit, "side": "right"},
                "thickness": 12,
                "outlinewidth": 0,
                "xpad": 4,
            },
            hovertemplate="step %{x}<br>rank %{y}<br>%{z:.1f} " + said + "<extra></extra>",
        )
    )
    figure.update_layout(**LAYOUT, height=min(640, max(240, 90 + 22 * lines)))
    figure.update_xaxes(title="step", showgrid=False)
    tick = {"dtick": 1} if lines <= _LABELLED_RANKS else {}
    figure.update_yaxes(title="rank", autorange="reversed", showgrid=False, **tick)
    _outline_episodes(figure, report)
    return figure


def _cells(report: Report) -> tuple[Matrix, float, str, str]:
    """Values, the least one that is drawn darkest, their unit, and how a cell is read out."""
    if shown_as(report) == "lateness":
        quiet = _DARKEST_STEP_RATIO * report.scores.median_step_seconds * 1e3
        return report.scores.lateness * 1e3, nan_stats.number(quiet) or 0.0, "ms late", "ms late"
    seconds = report.steps.seconds
    usual = nan_stats.median(seconds, axis=1)[:, None]
    beyond = np.maximum(100 * (seconds / np.where(usual > 0, usual, np.nan) - 1), 0.0)
    return beyond, 100 * _DARKEST_STEP_RATIO, "% longer", "% longer than its median"


def _outline_episodes(figure: go.Figure, report: Report) -> None:
    for episode in report.episodes:
        for rank in episode.ranks[:MAX_LINES]:
            figure.add_shape(
                type="rect",
                x0=episode.start_step - 0.5,
                x1=episode.end_step + 0.5,
                y0=rank - 0.5,
                y1=rank + 0.5,
                line={"color": INK, "width": 2},
            )


def _step_times(report: Report) -> go.Figure:
    long = (nan_stats.number(report.scores.median_step_seconds) or 0.0) >= _LONG_STEP_SECONDS
    unit, factor = ("s", 1.0) if long else ("ms", 1e3)
    actual = report.scores.step_seconds * factor
    lost = np.zeros_like(actual)
    stands_for = report.steps.over_all(np.ones_like(actual))
    for episode in report.episodes:
        lost[episode.places] += episode.lost_by_step / stands_for[episode.places] * factor
    shown, ideal = binned(actual, MAX_COLUMNS, 0), binned(actual - lost, MAX_COLUMNS, 0)
    numbers = _thinned(report.steps.numbers, len(shown))
    figure = go.Figure()
    if report.episodes:
        figure.add_scatter(
            x=numbers, y=ideal, name="without the slow rank", line={"color": QUIET, "width": 1.2}
        )
    figure.add_scatter(x=numbers, y=shown, name="measured", line={"color": INK, "width": 1.4})
    for episode in report.episodes:
        figure.add_vrect(
            x0=episode.start_step, x1=episode.end_step, fillcolor=ACCENT, opacity=0.12, line_width=0
        )
    figure.update_layout(**LAYOUT, height=280)
    figure.update_xaxes(title="step", gridcolor=GRID)
    top = _SPACE_ABOVE * (nan_stats.number(nan_stats.quantile(shown, 0.98)) or 1.0)
    figure.update_yaxes(title=f"{unit} a step", range=[0, top], gridcolor=GRID)
    return figure


def _phases(report: Report) -> go.Figure:
    lines = report.ranks[:MAX_LINES]
    figure = go.Figure()
    ranks = [f"rank {line.rank}" for line in lines]
    for phase in (*(p for p in STEP_PHASES if p != "sync"), "sync"):
        seconds = [line.phase_seconds[phase] or 0.0 for line in lines]
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
        **LAYOUT, barmode="stack", bargap=0.25, height=min(900, 120 + 30 * len(lines))
    )
    figure.update_xaxes(title="mean ms a step", gridcolor=GRID)
    figure.update_yaxes(autorange="reversed", title=None)
    return figure


def _thinned(values: "np.ndarray[Any, np.dtype[np.int64]]", count: int) -> list[int]:
    """The first of each bin."""
    size = max(1, -(-len(values) // max(1, count)))
    return [int(value) for value in values[::size]]
