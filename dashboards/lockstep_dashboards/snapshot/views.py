"""Drawings of panels from their answers: values for a template, or series for the page's script."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from lockstep_catalogue.palette import SERIES
from lockstep_dashboards.links import cell_links
from lockstep_dashboards.panel import HIDDEN, SUMMARY, Panel, View
from lockstep_dashboards.scope import natural
from lockstep_dashboards.snapshot.answers import Frame, PanelAnswer, stretches

_DAY, _WEEK = 86400.0, 604_800.0
_TIME = (
    (1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"),
    (_DAY, "days"), (_WEEK, "weeks"), (31_557_600.0, "years"),
)  # fmt: skip
_COUNTS = ((1.0, ""), (1e3, "K"), (1e6, "Mil"), (1e9, "Bil"), (1e12, "Tri"))
_UNIT_DIGITS = 4
_LEAST_WEEKS = 8  # below it, days are read more easily
_MINUS = "\N{MINUS SIGN}"

Steps = tuple[tuple[float, str], ...]


def _prefixed(unit: str, base: float, prefixes: str, first: int = 0) -> Steps:
    names = prefixes.split(",")
    return tuple((base ** (n + first), f"{prefix}{unit}") for n, prefix in enumerate(names))


def _decimal(unit: str) -> Steps:
    return _prefixed(unit, 1000.0, ",k,M,G,T,P,E")


def _small_too(unit: str) -> Steps:
    return _prefixed(unit, 1000.0, "n,µ,m,,k,M,G,T,P", first=-3)


_SCALES: dict[str, Steps] = {
    "none": ((1.0, ""),), "short": _COUNTS, "locale": ((1.0, ""),), "s": _TIME,
    "bytes": _prefixed("B", 1024.0, ",Ki,Mi,Gi,Ti,Pi,Ei"), "Bps": _decimal("B/s"),
    "percentunit": ((0.01, "%"),), "hertz": _decimal("Hz"), "watt": _small_too("W"),
    "joule": _small_too("J"), "celsius": ((1.0, "°C"),),
    "cps": tuple((factor, f"{prefix} c/s".strip()) for factor, prefix in _COUNTS),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How values of a size are written: divided by ``divisor``, before the suffix."""

    divisor: float
    suffix: str

    def text(self, value: float, decimals: int | None = None) -> str:
        """A value with its unit."""
        number = value / self.divisor
        written = digits(abs(number), decimals)
        sign = _MINUS if number < 0 and written.strip("0.") else ""
        return f"{sign}{written}{self.suffix}"


def scale_of(unit: str, magnitude: float) -> Scale:
    """The scale in which values of a magnitude are read most easily."""
    divisor, name = _best(_SCALES.get(unit, ((1.0, unit),)), abs(magnitude))
    return Scale(divisor=divisor, suffix=f" {name}" if name else "")


def value_text(value: float, unit: str, decimals: int | None = None) -> str:
    """A value with its unit, in the scale that fits it."""
    return scale_of(unit, value).text(value, decimals)


def _best(scales: Steps, size: float) -> tuple[float, str]:
    """The largest scale in which the size is 1 or more; for 0 and tiny sizes the natural one."""
    if size == 0:
        return min(scales, key=lambda scale: abs(math.log(scale[0])))
    if scales is _TIME and _DAY <= size < _LEAST_WEEKS * _WEEK:
        return _DAY, "days"
    # Rounding must not show 1000 ms where 1 s is meant.
    fitting = [scale for scale in scales if size * (1 + 1e-9) >= scale[0]]
    return fitting[-1] if fitting else scales[0]


def digits(number: float, decimals: int | None = None) -> str:
    """A number of 0 or more with four significant digits, or as many decimals as are set."""
    if decimals is not None:
        return f"{number:,.{min(max(decimals, 0), 12)}f}"
    if number == 0:
        return "0"
    places = max(0, _UNIT_DIGITS - 1 - math.floor(math.log10(number)))
    if places > 2 * _UNIT_DIGITS:
        return f"{number:.2e}"
    text = f"{number:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


DASHES = ("solid", "dash", "dot")
INK = "var(--ink)"


def color_of(panel: Panel, value: float, default: str) -> str:
    """The CSS colour of a value by the thresholds; the default where they set none."""
    colors = [x.color for x in panel.thresholds if x.at is None or value >= x.at]
    return colors[-1] if colors else default


def series_styles(count: int) -> list[tuple[str, str]]:
    """A colour and a dash for each series; the dash changes when the colours are used up."""
    styles = [(color, dash) for dash in DASHES for color in SERIES]
    return [style for style, _ in zip(cycle(styles), range(count), strict=False)]


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
    own = [label.name for label in panel.columns]
    hidden = {*own, *HIDDEN}
    others = {name for row in rows for name in row if name[0] != "#" and name not in hidden}
    # A column that no row fills takes room from those that say something.
    return [name for name in (*own, *sorted(others)) if any(row.get(name) for row in rows)]


def _key(value: float | str | None) -> tuple[float, list[tuple[int, str]]]:
    return (value, []) if isinstance(value, int | float) else (0.0, natural(str(value)))


def _cell(name: str, row: Cells, answer: PanelAnswer, bases: Mapping[str, str]) -> dict[str, Any]:
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
            text, color = each.text, each.color
    return cell | {"text": text, "color": color, "is_number": True}


_MAX_STATS, _MAX_BARS = 12, 50
_DIGITS = 6
_EMPTY = 1e-9  # a bucket below it counts as empty, as in Grafana's own heat maps
_EXPONENT = 0.5  # small values get more of the heat map's colours

Figure = dict[str, Any]
Row = tuple[str, Sequence[float | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class LegendEntry:
    """A series in the legend: its name, its style and its last value."""

    name: str
    color: str
    dash: str = "solid"
    value: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """How a panel is drawn: a part of the template with its values, or a figure for the script."""

    view: str
    content: Mapping[str, Any] = field(default_factory=dict)
    figure: Figure | None = None
    legend: tuple[LegendEntry, ...] = ()
    has_toggles: bool = False


def draw(answer: PanelAnswer, bases: Mapping[str, str]) -> Drawing:
    """A panel; one without data says why.

    ``bases`` is where links of cells to boards, runbooks and the ledger begin, where that is known.
    """
    panel = answer.panel
    if answer.is_empty:
        why = f": {panel.may_be_empty}" if panel.may_be_empty else ""
        return message(answer.problem or panel.no_value or f"No data in this window{why}.")
    if panel.view is View.TABLE:
        return Drawing(view="table", content=draw_table(answer, bases))
    return _VIEWS[panel.view](answer)


def message(text: str) -> Drawing:
    """A sentence in place of a drawing."""
    return Drawing(view="message", content={"text": text})


def reading(panel: Panel, value: float | None) -> tuple[str, str]:
    """Text and CSS colour of a value: by a text of its own, or by unit and thresholds."""
    for each in panel.texts:
        if value == each.value:
            return each.text, each.color
    if value is None:
        return panel.no_value or "no data", "var(--soft)"
    return value_text(value, panel.unit, panel.decimals), color_of(panel, value, INK)


def _draw_stat(answer: PanelAnswer) -> Drawing:
    panel, fixed = answer.panel, dict(answer.panel.colors)
    frames = answer.frames[:_MAX_STATS]
    stats = []
    for frame in frames:
        text, color = reading(panel, frame.last)
        color = fixed.get(frame.name, color)
        # A legend of labels says which of several figures it is, even where the others are absent.
        has_name = len(panel.queries) > 1 or len(frames) > 1 or "{{" in panel.queries[0].legend
        stats.append({"text": text, "color": color, "name": frame.name if has_name else ""})
    return Drawing(view="stat", content={"stats": stats, "num": len(stats)})


def _draw_bars(answer: PanelAnswer) -> Drawing:
    panel, fixed = answer.panel, dict(answer.panel.colors)
    frames = sorted(
        answer.frames, key=lambda frame: frame.last or 0.0, reverse=not panel.ascending
    )[:_MAX_BARS]
    low = panel.minimum or 0.0
    highest = max((frame.last or 0.0 for frame in frames), default=1.0)
    high = highest if panel.maximum is None else panel.maximum
    bars = []
    for frame in frames:
        text, color = reading(panel, frame.last)
        part = ((frame.last or 0.0) - low) / (high - low) if high > low else 0.0
        color = fixed.get(frame.name, "var(--accent)" if color == INK else color)
        percent = round(100 * min(max(part, 0.0), 1.0), 2)
        bars.append({"name": frame.name, "text": text, "color": color, "percent": percent})
    return Drawing(view="bars", content={"bars": bars})


def _draw_lines(answer: PanelAnswer) -> Drawing:
    """A line a series, or stacked areas; limits are lines in the colour of their threshold."""
    panel = answer.panel
    frames = [frame for frame in answer.frames if frame.last is not None]
    fixed = dict(panel.colors)
    legend = []
    for frame, (color, own_dash) in zip(frames, series_styles(len(frames)), strict=True):
        # The last point may not be complete yet; what is older is not the value of now.
        now = next((x for x in reversed(frame.values[-2:]) if x is not None), None)
        value = "no value" if now is None else value_text(now, panel.unit, panel.decimals)
        own = fixed.get(frame.name, color)
        dash = "dash" if frame.name in panel.dashed else own_dash
        legend.append(LegendEntry(name=frame.name, color=own, dash=dash, value=value))
    present = [value for frame in frames for value in frame.values if value is not None]
    series = [
        {"name": entry.name, "color": entry.color, "dash": entry.dash, "values": _short(x.values)}
        for x, entry in zip(frames, legend, strict=True)
    ]
    limits = [[x.at, x.color] for x in panel.thresholds if x.at is not None]
    figure = _figure(answer, max(map(abs, present), default=0.0), kind="lines", series=series)
    figure |= {"stacked": panel.stacked, "limits": limits}
    return Drawing(view="figure", figure=figure, legend=tuple(legend), has_toggles=True)


def _figure(answer: PanelAnswer, magnitude: float, **more: Any) -> Figure:
    scope, panel = answer.scope, answer.panel
    scale = scale_of("short" if panel.has_buckets else panel.unit, magnitude)
    return {
        "begin": scope.start,
        "step": scope.step_seconds,
        "count": scope.num_points,
        "scale": [scale.divisor, scale.suffix],
        "min": panel.minimum,
        "max": panel.maximum,
        **more,
    }


def _short(values: Sequence[float | None]) -> list[float | None]:
    """Values with six significant digits: more than a line shows, in half the bytes."""
    return [None if value is None else float(f"{value:.{_DIGITS}g}") for value in values]


def _draw_heat_map(answer: PanelAnswer) -> Drawing:
    """Rows of cells, more opaque where there is more; the first rank is at the top."""
    frames = [frame for frame in answer.frames if frame.last is not None]
    rows = _buckets(frames, answer.panel.unit) if answer.panel.has_buckets else _rows(frames)
    present = [value for _, values in rows for value in values if value is not None]
    if not present:
        return message("Every bucket is empty in this window.")
    panel, highest = answer.panel, max(present)
    figure = _figure(answer, highest, kind="grid", rows=[name for name, _ in rows])
    low = (0.0 if min(present) >= 0 else min(present)) if panel.minimum is None else panel.minimum
    high = highest if panel.maximum is None else panel.maximum
    figure |= {"values": [_short(values) for _, values in rows], "exponent": _EXPONENT}
    figure |= {"min": low, "max": high if high > low else low + 1.0}
    ends = [value_text(x, "short" if panel.has_buckets else panel.unit) for x in (low, high)]
    legend = (LegendEntry(name=f"from {ends[0]} (faint) to {ends[1]} (strong)", color="heat"),)
    return Drawing(view="figure", figure=figure, legend=legend)


def _rows(frames: Sequence[Frame]) -> list[Row]:
    return sorted(((x.name, x.values) for x in frames), key=lambda row: natural(row[0]))


def _buckets(frames: Sequence[Frame], unit: str) -> list[Row]:
    """What falls into each bucket alone, from the cumulative counts; empty outer ones left out."""
    ordered = sorted(frames, key=lambda frame: float(frame.labels["le"]))
    rows: list[Row] = []
    below: Sequence[float | None] = ()
    for frame in ordered:
        bound = float(frame.labels["le"])
        name = "more" if math.isinf(bound) else f"≤ {value_text(bound, unit)}"
        counts = [
            None if value is None else value - (below[index] or 0.0 if below else 0.0)
            for index, value in enumerate(frame.values)
        ]
        rows.append((name, [count if count and count > _EMPTY else None for count in counts]))
        below = frame.values
    filled = [number for number, (_, cells) in enumerate(rows) if any(cells)]
    # The largest bucket is at the top.
    return rows[filled[0] : filled[-1] + 1][::-1] if filled else []


def _draw_states(answer: PanelAnswer) -> Drawing:
    rows = _rows([frame for frame in answer.frames if frame.last is not None])
    states: dict[float, tuple[str, str]] = {}
    for value in sorted({value for _, cells in rows for value in cells if value is not None}):
        text, color = reading(answer.panel, value)
        styles = series_styles(len(states) + 1)
        states[value] = (text, styles[-1][0] if color == INK else color)
    bars = [
        [[value, *ends] for value in states for ends in stretches([x == value for x in cells])]
        for _, cells in rows
    ]
    figure = _figure(answer, 1.0, kind="states", rows=[name for name, _ in rows], bars=bars)
    figure |= {"states": {f"{value:g}": state for value, state in states.items()}}
    legend = tuple(LegendEntry(name=text, color=color) for text, color in states.values())
    return Drawing(view="figure", figure=figure, legend=legend)


_VIEWS: Mapping[View, Callable[[PanelAnswer], Drawing]] = {
    View.STAT: _draw_stat, View.BAR_GAUGE: _draw_bars, View.TIME_SERIES: _draw_lines,
    View.HEAT_MAP: _draw_heat_map, View.STATE_TIMELINE: _draw_states,
}  # fmt: skip
