"""The parts of a board as plain values: queries, panels, rows, variables."""

from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from lockstep_catalogue import Label, Recorded, Series, Unit

MAX_SERIES = 50
COLUMNS = 24

# Grafana's names of units.
_UNITS = {
    Unit.NONE: "short",
    Unit.SECONDS: "s",
    Unit.BYTES: "bytes",
    Unit.BYTES_PER_SECOND: "Bps",
    Unit.RATIO: "percentunit",
    Unit.WATTS: "watt",
    Unit.JOULES: "joule",
    Unit.CELSIUS: "celsius",
    Unit.HERTZ: "hertz",
}
_UNITS_PER_SECOND = {Unit.NONE: "cps", Unit.BYTES: "Bps", Unit.SECONDS: "percentunit"}
_OPERATIONS = {
    "": "",
    "per_step": "per step",
    "mean": "mean",
    "ratio": "ratio",
    "rate": "per second",
}


class View(Enum):
    """How a panel shows its series; the value is Grafana's panel type."""

    STAT = "stat"
    TIME_SERIES = "timeseries"
    HEAT_MAP = "heatmap"
    TABLE = "table"


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One PromQL expression with Grafana's variables in it, and the name of its series."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One panel; ``panel`` builds it from a series of the catalogue.

    Attributes:
        unit: Grafana's name of the unit.
        may_be_empty: why a healthy job may have no series here; empty when it must have some.
        stacked: whether series are drawn as stacked areas.
        columns: labels of a table, before the value.
    """

    view: View
    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    width: int
    height: int
    may_be_empty: str = ""
    stacked: bool = False
    columns: tuple[Label, ...] = ()

    def __post_init__(self) -> None:
        assert 1 <= self.width <= COLUMNS, self.title
        assert self.queries, self.title


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """A variable at the top of a board: the values of a label.

    Attributes:
        source: selector of the series whose label values are offered.
        several: whether more than one value may be chosen; all of them by default.
    """

    label: Label
    title: str
    source: str
    several: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """A vertical line or region over all panels while an expression has a value."""

    title: str
    expression: str
    heading: str
    color: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Board:
    """A board: variables, rows of panels, annotations."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    annotations: tuple[Annotation, ...] = field(default=())

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, from top to bottom."""
        return tuple(panel for row in self.rows for panel in row.panels)


def title_of(series: Series) -> str:
    """A title from a series' name: without prefix, part, ``_total`` and unit."""
    name, operation = series.name, ""
    if isinstance(series, Recorded):
        _, name, operation = series.name.split(":")
    stem = name.removesuffix("_total").removesuffix(f"_{series.unit.value}")
    return " ".join([*stem.split("_")[2:], _OPERATIONS[operation]]).strip().capitalize()


def panel(
    view: View,
    series: Series,
    *queries: Query,
    title: str = "",
    note: str = "",
    unit: Unit | None = None,
    per_second: bool = False,
    width: int = 12,
    height: int = 8,
    stacked: bool = False,
    columns: tuple[Label, ...] = (),
    may_be_empty: str = "",
) -> Panel:
    """A panel that takes title, unit and description from the series it is about.

    ``title`` and ``unit`` are given where what is shown is not the series itself, ``per_second``
    where it is its rate; ``note`` says in the description what the queries make of the series.
    """
    units = _UNITS_PER_SECOND if per_second else _UNITS
    words = [note, series.help, f"Series: {series.name}."]
    return Panel(
        view=view,
        title=title or title_of(series) + (" per second" if per_second else ""),
        description=" ".join(word for word in words if word),
        unit=units[unit or series.unit],
        queries=queries,
        width=width,
        height=height,
        may_be_empty=may_be_empty,
        stacked=stacked,
        columns=columns,
    )


stat = partial(panel, View.STAT, width=4, height=4)
time_series = partial(panel, View.TIME_SERIES)
heat_map = partial(panel, View.HEAT_MAP)
table = partial(panel, View.TABLE)
