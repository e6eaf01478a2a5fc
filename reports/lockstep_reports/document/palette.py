"""Colours and layout that all figures of a page share."""

from typing import Any

from lockstep_catalogue.palette import BLUE, GREEN, ORANGE, PURPLE, SKY, YELLOW

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
SEVERITY_COLOURS = {
    **dict.fromkeys(("failed", "hung", "out_of_memory", "not_finite", "slow"), "red"),
    **dict.fromkeys(("resumed", "stopped", "unknown"), "yellow"),
    "nobody": "green",
}
"""Of a headline in the terminal; the style sheet of the pages has the same three groups."""
LAYOUT: dict[str, Any] = {
    "template": "plotly_white",
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
    "margin": {"l": 64, "r": 24, "t": 16, "b": 48},
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
}
