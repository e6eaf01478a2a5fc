"""Tables: a row for each set of labels, with the values of all queries."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from lockstep_dashboards.snapshot.answers import PanelAnswer
from lockstep_dashboards.snapshot.board_file import GrafanaPanel
from lockstep_dashboards.snapshot.fields import Field, field_of
from lockstep_dashboards.snapshot.links import link_target
from lockstep_dashboards.snapshot.views.drawing import Drawing, Scene
from lockstep_dashboards.snapshot.views.heat_map import natural

MAX_ROWS = 100

Cells = dict[str, float | str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    """A column: the field that it holds, and its heading."""

    name: str
    heading: str
    field: Field


def draw(answer: PanelAnswer, scene: Scene) -> Drawing:
    """Rows joined by their labels, in the order that the panel sorts by."""
    panel = answer.panel
    rows = _joined(answer)
    columns = _columns(panel, rows)
    _sort(rows, columns, panel)
    rendered = [
        [_cell(row.get(column.name), column, row, scene) for column in columns]
        for row in rows[:MAX_ROWS]
    ]
    headings = [
        {"text": column.heading, "is_number": any(_is_number(row.get(column.name)) for row in rows)}
        for column in columns
    ]
    content = {
        "headings": headings,
        "rows": rendered,
        "num_omitted": max(0, len(rows) - MAX_ROWS) + answer.num_omitted,
    }
    return Drawing(view="table", content=content)


def _joined(answer: PanelAnswer) -> list[Cells]:
    """Rows of all queries; those that agree in the labels all queries have become one row.

    So does Grafana's transformation ``merge``: an info series brings its labels to the values.
    """
    several = len(answer.panel.targets) > 1
    rows: dict[tuple[str | None, ...], list[Cells]] = {}
    shared = _shared_labels(answer)
    for frame in answer.frames:
        cells: Cells = {name: text for name, text in frame.labels.items() if name != "__name__"}
        cells[f"Value #{frame.target.ref_id}" if several else "Value"] = frame.last
        group = rows.setdefault(tuple(frame.labels.get(name) for name in shared), [])
        fitting = (row for row in group if all(row.get(x, y) == y for x, y in cells.items()))
        if (row := next(fitting, None)) is None:
            group.append(cells)
        else:
            row |= cells
    return [row for group in rows.values() for row in group]


def _shared_labels(answer: PanelAnswer) -> list[str]:
    """Labels that the series of every query have."""
    by_query: dict[str, set[str]] = {}
    for frame in answer.frames:
        by_query.setdefault(frame.target.ref_id, set()).update(frame.labels)
    return sorted(set.intersection(*by_query.values()) - {"__name__"}) if by_query else []


def _columns(panel: GrafanaPanel, rows: Iterable[Cells]) -> list[_Column]:
    """The columns that the panel's transformations leave, in their order."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    names.sort(key=lambda name: (name.startswith("Value"), name))
    headings: dict[str, str] = {}
    for transformation in panel.transformations:
        options = transformation.get("options") or {}
        if transformation.get("id") == "organize":
            names = _organized(names, options)
            headings |= options.get("renameByName") or {}
        elif transformation.get("id") == "filterFieldsByName":
            included = (options.get("include") or {}).get("names")
            names = [name for name in names if included is None or name in included]
    columns = []
    for name in names:
        heading = str(headings.get(name) or name)
        field = field_of(panel, name, heading)
        if not field.custom("hidden") and not field.custom("hideFrom.viz"):
            heading = str(field.settings.get("displayName") or heading)
            columns.append(_Column(name=name, heading=heading, field=field))
    return columns


def _organized(names: list[str], options: Mapping[str, Any]) -> list[str]:
    excluded = options.get("excludeByName") or {}
    included = options.get("includeByName") or {}
    order = options.get("indexByName") or {}
    left = [name for name in names if not excluded.get(name)]
    if included:
        left = [name for name in left if included.get(name)]
    return sorted(left, key=lambda name: order.get(name, len(order)))


def _sort(rows: list[Cells], columns: Iterable[_Column], panel: GrafanaPanel) -> None:
    """Sorts by the column that the panel names; a row without a value comes last."""
    for wish in panel.options.get("sortBy") or ():
        name = next((x.name for x in columns if wish.get("displayName") in {x.name, x.heading}), "")
        present = [(_key(row[name]), row) for row in rows if row.get(name) is not None]
        absent = [row for row in rows if row.get(name) is None]
        present.sort(key=itemgetter(0), reverse=bool(wish.get("desc")))
        rows[:] = [*(row for _, row in present), *absent]


def _key(value: float | str | None) -> tuple[float, list[tuple[int, str]]]:
    return (value, []) if isinstance(value, int | float) else (0.0, natural(str(value)))


def _is_number(value: float | str | None) -> bool:
    return isinstance(value, int | float)


def _cell(value: float | str | None, column: _Column, row: Cells, scene: Scene) -> dict[str, Any]:
    if value is None:
        return {"text": "", "color": "", "is_filled": False, "is_number": False, "link": ""}
    reading = column.field.display(value)
    style = (column.field.custom("cellOptions") or {}).get("type", "auto")
    is_filled = style == "color-background"
    is_colored = is_filled or style == "color-text" or bool(column.field.settings.get("mappings"))
    link = ""
    if scene.has_links:
        link = link_target(column.field.settings.get("links") or (), row, scene)
    return {
        "text": reading.text,
        "color": reading.color if is_colored else "",
        "is_filled": is_filled,
        "is_number": _is_number(value),
        "link": link,
    }
