"""Puts panels into Grafana's grid of 24 columns, from left to right and top to bottom."""

from dataclasses import dataclass

from lockstep_dashboards.panel import COLUMNS, Panel, Row

_HEADING_HEIGHT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where something stands, in columns and rows of the grid."""

    x: int
    y: int
    width: int
    height: int


def pack(rows: tuple[Row, ...]) -> list[tuple[Row | Panel, Place]]:
    """Every heading and panel with its place; a panel that finds no room begins a new line."""
    placed: list[tuple[Row | Panel, Place]] = []
    y = 0
    for row in rows:
        placed.append((row, Place(x=0, y=y, width=COLUMNS, height=_HEADING_HEIGHT)))
        x, y, line_height = 0, y + _HEADING_HEIGHT, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, line_height = 0, y + line_height, 0
            placed.append((panel, Place(x=x, y=y, width=panel.width, height=panel.height)))
            x, line_height = x + panel.width, max(line_height, panel.height)
        y += line_height
    return placed
