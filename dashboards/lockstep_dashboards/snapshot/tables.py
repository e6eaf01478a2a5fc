"""Tables: a row for each set of labels, with the values of all queries."""

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep_dashboards.links import cell_links
from lockstep_dashboards.opening import natural
from lockstep_dashboards.panel import SUMMARY, Panel
from lockstep_dashboards.snapshot.answers import PanelAnswer
from lockstep_dashboards.snapshot.colors import color_of, css_color
from lockstep_dashboards.snapshot.units import value_text

MAX_ROWS = 100

Cells = dict[str, float | str | None]


def draw_table(answer: PanelAnswer, bases: Mapping[str, str]) -> dict[str, Any]:
    """Headings and rows, in the order that the panel sorts by, without columns of no value."""
    panel, rows = answer.panel, _joined(answer)
    labels = _labels(panel, rows)
    values = [(_value_name(n), heading) for n, heading in enumerate(panel.value_names)]
    informative = (each for each, is_one in zip(values, panel.ones, strict=True) if not is_one)
    values = [each for each in informative if any(each[0] in row for row in rows)]
    names = [*((name, name) for name in labels), *values]
    wish = next((name for name, heading in names if panel.sorted_by in {name, heading}), "")
    present = [row for row in rows if row.get(wish) is not None]
    present.sort(key=lambda row: _key(row[wish]), reverse=not panel.ascending)
    rows = [*present, *(row for row in rows if row.get(wish) is None)]
    return {
        "headings": [{"text": heading, "is_number": name not in labels} for name, heading in names],
        "rows": [[_cell(name, row, answer, bases) for name, _ in names] for row in rows[:MAX_ROWS]],
        "num_omitted": max(0, len(rows) - MAX_ROWS) + answer.num_omitted,
    }


def _value_name(number: int) -> str:
    """The name of a query's column; labels have no such letters."""
    return f"#{number}"


def _joined(answer: PanelAnswer) -> list[Cells]:
    """Rows of all queries; those that agree in the labels all queries have become one row.

    So does Grafana's transformation ``merge``: an info series brings its labels to the values.
    """
    by_query: dict[int, set[str]] = {}
    for frame in answer.frames:
        by_query.setdefault(frame.number, set()).update(frame.labels)
    shared = sorted(set.intersection(*by_query.values()) - {"__name__"}) if by_query else []
    rows: dict[tuple[str | None, ...], list[Cells]] = {}
    for frame in answer.frames:
        cells: Cells = {name: text for name, text in frame.labels.items() if name != "__name__"}
        cells[_value_name(frame.number)] = frame.last
        group = rows.setdefault(tuple(frame.labels.get(name) for name in shared), [])
        fitting = (row for row in group if all(row.get(x, y) == y for x, y in cells.items()))
        if (row := next(fitting, None)) is None:
            group.append(cells)
        else:
            row |= cells
    return [row for group in rows.values() for row in group]


def _labels(panel: Panel, rows: Sequence[Cells]) -> list[str]:
    """The panel's labels in their order, then those that it does not hide."""
    own = [label.name for label in panel.columns]
    hidden = {*own, *panel.hidden}
    others = {name for row in rows for name in row if name[0] != "#" and name not in hidden}
    # A column that no row fills takes room from those that say something.
    return [name for name in (*own, *sorted(others)) if any(row.get(name) for row in rows)]


def _key(value: float | str | None) -> tuple[float, list[tuple[int, str]]]:
    return (value, []) if isinstance(value, int | float) else (0.0, natural(str(value)))


def _cell(name: str, row: Cells, answer: PanelAnswer, bases: Mapping[str, str]) -> dict[str, Any]:
    """Text, colour and links of a cell; colours are of values with the panel's own unit."""
    value, panel = row.get(name), answer.panel
    cell = {"text": "", "color": "", "is_number": False, "links": []}
    if value is None:
        return cell
    if isinstance(value, str):
        if name == SUMMARY:
            return cell | {"text": dict(panel.summaries).get(value, "")}
        labels = [label for label in panel.columns if label.name == name]
        links = [x for y in labels for x in cell_links(y, row, panel, answer.scope, bases)]
        return cell | {"text": value, "links": links}
    query = panel.queries[int(name[1:])]
    text = value_text(value, query.unit or panel.unit, panel.decimals)
    color = color_of(panel, value, "") if query.unit in {"", panel.unit} else ""
    heading = panel.value_names[int(name[1:])]
    for each in panel.texts if panel.texts_of in {"", heading} else ():
        if value == each.value:
            text, color = each.text, css_color(each.color)
    return cell | {"text": text, "color": color, "is_number": True}
