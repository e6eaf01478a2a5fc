"""Reads the layout of a board: a YAML file with variables, rows, and panels about series."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from lockstep_catalogue import FOREIGN, METRICS, RECORDED, Label, Recorded, Series, Unit
from lockstep_catalogue.palette import BLUE, GREY, ORANGE, STATE_COLOURS, VERMILION
from lockstep_catalogue.promql import LE
from lockstep_dashboards.panel import (
    SUMMARY,
    Annotation,
    Board,
    Panel,
    Query,
    Row,
    Threshold,
    ValueText,
    Variable,
    View,
)
from lockstep_records.text.yaml_documents import read_yaml

Fields = dict[str, Any]

FOLDER = Path(__file__).parent / "layouts"
_ANNOTATIONS, _ALERTS = "annotations.yaml", "alerts.yaml"
_EVERY: tuple[Series, ...] = (*METRICS, *RECORDED, *FOREIGN)
_SERIES = {each.name: each for each in _EVERY}
_STORED = {name: each for each in _EVERY for name in getattr(each, "sample_names", (each.name,))}
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
_LABELS: dict[str, Label] = {
    label.name: label for each in _SERIES.values() for label in each.exposed_labels
}
_VIEWS = {view.name.lower(): view for view in View}
# Good is blue and bad is vermilion: red against green is what most colour-blind people confuse.
NAMED_COLORS = {
    "good": BLUE.upper(),
    "warning": ORANGE.upper(),
    "bad": VERMILION.upper(),
    "neutral": GREY.upper(),
}
_GOODPUT_COLORS = tuple((state, color.upper()) for state, color in STATE_COLOURS.items())
_SIZES = {View.STAT: {"width": 4, "height": 4}}
_QUERY_KEYS = frozenset({"expr", "legend", "heading"})
_PLAIN_KEYS = frozenset(
    {
        *("title", "note", "good", "otherwise", "unit", "width", "height", "may_be_empty"),
        *("stacked", "minimum", "maximum", "max_points", "shows_windows"),
        *("texts_of", "no_value", "sort", "ascending", "decimals"),
    }
)
# Grafana's names of units.
UNITS = {
    Unit.NONE: "short",
    Unit.SECONDS: "s",
    Unit.BYTES: "bytes",
    Unit.BYTES_PER_SECOND: "Bps",
    Unit.RATIO: "percentunit",
    Unit.WATTS: "watt",
    Unit.JOULES: "joule",
    Unit.CELSIUS: "celsius",
    Unit.HERTZ: "hertz",
    Unit.LANES: "short",
}
_OPERATIONS = {
    "": "",
    "per_step": "per step",
    "rate": "per second",
    "newest": "",
    "max": "longest",
    "min_ratio": "lowest ratio",
}
_SPELLED = (
    *("BAR1", "CPU", "DRAM", "ECC", "ECN", "GPU", "HTTP", "MFU", "MIG", "NIC", "NVLink", "PCIe"),
    *("RDMA", "SLO", "SM", "SRAM", "TCP", "Xid"),
)
_WORDS = {word.lower(): word for word in _SPELLED}


def title_of(series: Series) -> str:
    """A title from a series' name: without prefix, part, ``_total`` and unit."""
    name, operation = series.name, ""
    if isinstance(series, Recorded):
        _, name, operation = series.name.split(":")
    stem = name.removesuffix("_total").removesuffix(f"_{series.unit.value}")
    if operation == "rate":  # seconds a second have no unit
        stem = stem.removesuffix(f"_{Unit.SECONDS.value}")
    ending = _OPERATIONS.get(operation, operation.replace("_", " "))
    # Other programs' names, and those of Sloth that ours follow, have no prefix and part.
    num_prefixes = 2 if stem.startswith("lockstep_") else 0
    words = [_WORDS.get(word, word) for word in [*stem.split("_")[num_prefixes:], *ending.split()]]
    title = " ".join(words)
    return title[:1].upper() + title[1:]


def panel(
    view: View,
    series: Series,
    *queries: Query,
    title: str = "",
    note: str = "",
    good: str = "",
    otherwise: str = "",
    unit: Unit | str | None = None,
    width: int = 12,
    height: int = 8,
    **fields: Any,
) -> Panel:
    """A panel that takes title, unit and description from the series it is about.

    ``title`` and ``unit``, one of the catalogue or of Grafana, are given where what is shown is
    not the series itself. In the description ``note`` says what the queries make of the series,
    ``good`` what good looks like, ``otherwise`` what to do when it is not; ``fields`` are further
    fields of the panel.
    """
    words = [
        note,
        series.help,
        good and f"Good: {good}",
        otherwise and f"Otherwise: {otherwise}",
        f"Series: {series.name}.",
    ]
    return Panel(
        view=view,
        title=title or title_of(series),
        description=" ".join(word for word in words if word),
        unit=unit if isinstance(unit, str) else UNITS[unit or series.unit],
        queries=queries,
        width=width,
        height=height,
        **fields,
    )


def read_board(path: Path) -> Board:
    """The board of a layout; ValueError where a series, label, value, colour or key is unknown."""
    layout = read_yaml(path)
    variables = tuple(map(_variable, layout["variables"]))
    return Board(
        uid=layout["uid"],
        title=layout["title"],
        description=layout["description"],
        variables=variables,
        rows=tuple(_row(path, each, variables) for each in layout["rows"]),
        annotations=tuple(_annotations(path.parent / _ANNOTATIONS, layout, variables)),
        range=layout["range"],
        refresh=layout["refresh"],
    )


def _variable(fields: Fields) -> Variable:
    return Variable(
        label=_LABELS[fields["label"]],
        title=fields["title"],
        source=fields["source"],
        several=fields.get("several", False),
        variable=fields.get("name", ""),
    )


def _annotations(path: Path, layout: Fields, variables: Sequence[Variable]) -> Iterator[Annotation]:
    chosen = _chosen(variables, layout.get("annotated_by"))
    for fields in read_yaml(path):
        yield Annotation(
            title=fields["title"],
            expression=_restrict(fields["expr"], chosen),
            heading=fields["heading"],
            color=NAMED_COLORS[fields["color"]],
        )


def _chosen(variables: Sequence[Variable], names: Sequence[str] | None) -> tuple[Variable, ...]:
    """The variables that restrict the queries: all of them where none are named."""
    return tuple(each for each in variables if names is None or each.name in names)


def _row(path: Path, fields: Fields, variables: tuple[Variable, ...]) -> Row:
    chosen = _chosen(variables, fields.get("chosen"))
    panels = []
    for each in fields["panels"]:
        own = _chosen(variables, each["chosen"]) if "chosen" in each else chosen
        try:
            panels.append(_panel({**each}, own))
        except (KeyError, ValueError) as error:
            where = f"{path.name}: row {fields['title']!r}, panel {each.get('title', each)!r}"
            reason = f"unknown name {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{where}: {reason}") from error
    return Row(
        title=fields["title"],
        panels=tuple(panels),
        collapsed=fields.get("collapsed", False),
        has_heading=fields.get("heading", True),
    )


def _panel(fields: Fields, chosen: tuple[Variable, ...]) -> Panel:
    view = _VIEWS[next(iter(fields))]
    series = _SERIES[fields.pop(view.name.lower())]
    fields.pop("chosen", None)
    queries = [_query(each, chosen) for each in _queries(fields)]
    texts = fields.pop("texts", {})
    given: Fields = {
        "columns": tuple(_column(name, queries) for name in fields.pop("columns", ())),
        "thresholds": tuple(
            Threshold(color=NAMED_COLORS[color], at=None if at == "low" else at)
            for at, color in fields.pop("thresholds", {}).items()
        ),
        "texts": tuple(
            ValueText(value=value, text=text, color=NAMED_COLORS[color])
            for value, (text, color) in texts.items()
        ),
        "colors": _colors(fields.pop("colors", {})),
        "dashed": tuple(fields.pop("dashed", ())),
    }
    if any(label.name == SUMMARY for label in given["columns"]):
        given["summaries"] = tuple(read_yaml(FOLDER / _ALERTS).items())
    for key in fields.keys() - _PLAIN_KEYS:
        raise KeyError(key)
    return panel(view, series, *queries, **{**_SIZES.get(view, {}), **given, **fields})


def _column(name: str, queries: Sequence[Query]) -> Label:
    """A label of the catalogue, or one that the queries write themselves."""
    if name not in _LABELS and any(f', "{name}", ' in query.expression for query in queries):
        return Label(name=name, help="written by the query")
    return _LABELS[name]


def _queries(fields: Fields) -> Sequence[Mapping[str, str]]:
    if "queries" in fields:
        queries: Sequence[Mapping[str, str]] = fields.pop("queries")
        return queries
    own = {key: fields.pop(key) for key in _QUERY_KEYS if key in fields}
    return [own]


def _query(fields: Mapping[str, str], chosen: tuple[Variable, ...]) -> Query:
    return Query(
        expression=_restrict(fields["expr"], chosen),
        legend=fields.get("legend", ""),
        heading=fields.get("heading", ""),
        unit=fields.get("unit", ""),
    )


def _colors(fields: Mapping[str, str] | str) -> tuple[tuple[str, str], ...]:
    if isinstance(fields, str):
        return {"goodput": _GOODPUT_COLORS}[fields]
    return tuple(
        (name, color if color.startswith("#") else NAMED_COLORS[color])
        for name, color in fields.items()
    )


def _restrict(expression: str, variables: Sequence[Variable]) -> str:
    """The expression with a matcher, in each selector, for every variable whose label it has.

    Raises ValueError for a label that a series lacks, or a value that it cannot take.
    """

    def restricted(found: re.Match[str]) -> str:
        series = _STORED.get(found[1])
        if series is None:
            return found[0]
        labels = {label.name: label for label in (*series.exposed_labels, LE)}
        own = found[2] or ""
        _check_matchers(series, labels, own)
        chosen = [
            f'{each.label.name}{"=~" if each.several else "="}"${each.name}"'
            for each in variables
            if each.label.name in labels
        ]
        inside = ", ".join([*chosen, *filter(None, [own])])
        return f"{found[1]}{{{inside}}}" if inside else found[1]

    return _SELECTOR.sub(restricted, expression)


def _check_matchers(series: Series, labels: dict[str, Label], text: str) -> None:
    for name, operator, value in _MATCHER.findall(text):
        if name not in labels:
            raise ValueError(f"{series.name} has no label {name}; it has {', '.join(labels)}")
        allowed = labels[name].values
        for each in value.split("|") if "~" in operator else [value]:
            if allowed and each and each not in allowed:
                raise ValueError(f"{name}={each!r} is not one of {', '.join(allowed)}")


NAMES = ("executive", "on-call", "job", "node", "fabric", "monitor")
BOARDS = {f"{name}.json": read_board(FOLDER / f"{name}.yaml") for name in NAMES}
SHIPPED = {name.removesuffix(".json"): board for name, board in BOARDS.items()}
"""Lockstep's own boards by their short names."""


def find_board(name: str) -> tuple[str, Board]:
    """Short name and board, of a name or a uid; a ValueError names the closest."""
    for short, board in SHIPPED.items():
        if name in {short, board.uid}:
            return short, board
    close = get_close_matches(name, SHIPPED, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ValueError(f"board {name!r} does not exist; {hint}the boards are {', '.join(SHIPPED)}")
