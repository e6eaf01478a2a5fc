"""Puts panels into Grafana's grid of 24 columns, from left to right and top to bottom."""

from dataclasses import dataclass

from lockstep_dashboards.panel import COLUMNS, Panel, Row

_HEADING_HEIGHT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class GridPosition:
    """Position and size of a heading or panel, in columns and rows of the grid."""

    x: int
    y: int
    width: int
    height: int


def pack(rows: tuple[Row, ...], *, all_open: bool = True) -> list[tuple[Row | Panel, GridPosition]]:
    """Every heading and panel with its position; a panel that does not fit begins a new line.

    A row without a title has no heading.

    ``all_open`` gives collapsed rows their height too, as on a page that cannot open them;
    otherwise what follows a collapsed row stands right below its heading.
    """
    placed: list[tuple[Row | Panel, GridPosition]] = []
    y = 0
    for row in rows:
        heading_bottom = y
        if row.title and row.has_heading:
            placed.append((row, GridPosition(x=0, y=y, width=COLUMNS, height=_HEADING_HEIGHT)))
            heading_bottom += _HEADING_HEIGHT
        x, y, line_height = 0, heading_bottom, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, line_height = 0, y + line_height, 0
            placed.append((panel, GridPosition(x=x, y=y, width=panel.width, height=panel.height)))
            x, line_height = x + panel.width, max(line_height, panel.height)
        y = y + line_height if all_open or not row.collapsed else heading_bottom
    return placed
