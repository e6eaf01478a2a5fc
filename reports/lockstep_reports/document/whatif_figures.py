"""Figures of a replay: what slowed the job, and one step as recorded above the ideal one."""

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lockstep_reports.arrays import Integers, Seconds
from lockstep_reports.document.palette import ACCENT, GRID, LAYOUT, PHASE_COLOURS, QUIET
from lockstep_reports.recording.operations import BACKWARD, FORWARD, GARBAGE, OPTIMIZER
from lockstep_reports.whatif.analysis import WhatIf
from lockstep_reports.whatif.grid import Grid
from lockstep_reports.whatif.scenarios import ideal_times

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
