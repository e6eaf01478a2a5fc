"""The parts of a board as plain values: queries, panels, rows, variables."""

import re
from dataclasses import dataclass, field
from enum import Enum

from lockstep_catalogue import Label

MAX_SERIES = 50
COLUMNS = 24
_HEADINGS = {
    "percentunit": "share", "s": "time", "bytes": "bytes", "Bps": "per second", "watt": "power",
    "celsius": "temperature", "hertz": "clock", "short": "number",
}  # fmt: skip
"""What a column of values is called by its unit, where the layout says nothing."""
# The largest of an info series, perhaps where it is 1.
_INFO = re.compile(
    r"(?:(?:topk|limitk)\(\d+, )?(?:max|group) by \([^)]*\) \(\w+_info\{[^}]*\}\)(?: > 0)?\)?$"
)
HIDDEN = ("Time", "cluster", "job_id")
"""Labels that a table leaves out."""
SUMMARY = "summary"
"""The column that says in words what the alert of a row means."""


class View(Enum):
    """How a panel shows its series; the value is Grafana's panel type."""

    STAT = "stat"
    TIME_SERIES = "timeseries"
    HEAT_MAP = "heatmap"
    TABLE = "table"
    BAR_GAUGE = "bargauge"
    STATE_TIMELINE = "state-timeline"


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One PromQL expression with Grafana's variables in it, and the name of its series.

    Attributes:
        legend: name of a series, with labels as ``{{label}}``.
        heading, unit: of its column in a table; the panel's unit where that is empty.
    """

    expression: str
    legend: str = ""
    heading: str = ""
    unit: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """The colour of values from a limit on; without a limit, of all lower values."""

    color: str
    at: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueText:
    """The text and colour that stand for a value."""

    value: float
    text: str
    color: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One panel; ``series_panels.panel`` builds it from a series of the catalogue.

    Attributes:
        may_be_empty: why a healthy cluster may have no series here; empty when it must have some.
        thresholds: colours of values, the colour of the lowest ones first.
        texts: texts for single values, of a state timeline, a stat or a table.
        colors: colours of series by their legend; the palette's where there is none.
        dashed: legends of series that are drawn dashed, such as what a line can carry.
        max_points: points of each series at most, where a query is costly; 0 leaves it to Grafana.
        shows_windows: whether it shows the fixed windows of an objective, whatever the range.
        texts_of: heading of the only column that the texts are for; all values where it is empty.
        sort: heading of the column that a table is sorted by; the first value's where it is empty.
        summaries: what the column ``summary`` says of an alert, by its name.
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
    thresholds: tuple[Threshold, ...] = ()
    texts: tuple[ValueText, ...] = ()
    colors: tuple[tuple[str, str], ...] = ()
    dashed: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    max_points: int = 0
    shows_windows: bool = False
    texts_of: str = ""
    no_value: str = ""
    sort: str = ""
    ascending: bool = False
    decimals: int | None = None
    summaries: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        assert 1 <= self.width <= COLUMNS, self.title
        assert self.queries, self.title

    @property
    def is_instant(self) -> bool:
        """Whether its queries are evaluated at the end of the range only."""
        return self.view in {View.STAT, View.TABLE, View.BAR_GAUGE}

    @property
    def value_names(self) -> list[str]:
        """Headings of a table's values."""
        heading = _HEADINGS.get(self.unit, "value")
        return [query.heading or heading for query in self.queries]

    @property
    def ones(self) -> list[bool]:
        """Of each query, whether its values are an info series', always 1, and make no column."""
        return [
            self.view is View.TABLE and not query.heading and bool(_INFO.match(query.expression))
            for query in self.queries
        ]

    @property
    def sorted_by(self) -> str:
        """The heading that a table is sorted by."""
        names = [n for n, is_one in zip(self.value_names, self.ones, strict=True) if not is_one]
        return self.sort or (names or [label.name for label in self.columns] or self.value_names)[0]

    @property
    def has_buckets(self) -> bool:
        """Whether it is a heat map of a histogram's buckets, and not of series by time."""
        return self.view is View.HEAT_MAP and any("{{le}}" in each.legend for each in self.queries)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Panels under a heading, where it has one; a collapsed row asks nothing until it is opened."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False
    has_heading: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """A variable at the top of a board: the values of a label that series of ``source`` have.

    Attributes:
        several: whether more than one value may be chosen; all of them by default.
        variable: its name where that differs from the label's.
    """

    label: Label
    title: str
    source: str
    several: bool = False
    variable: str = ""

    @property
    def name(self) -> str:
        """The name by which expressions and links refer to it."""
        return self.variable or self.label.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """A vertical line or region over all panels while an expression has a value."""

    title: str
    expression: str
    heading: str
    color: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Board:
    """A board; ``range`` is shown first as Grafana writes it, ``refresh`` is a scrape at least."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    annotations: tuple[Annotation, ...] = field(default=())
    range: str = "1h"
    refresh: str = "1m"

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, from top to bottom."""
        return tuple(panel for row in self.rows for panel in row.panels)

    @property
    def opened_panels(self) -> tuple[Panel, ...]:
        """The panels that ask Prometheus when the board is opened."""
        return tuple(panel for row in self.rows if not row.collapsed for panel in row.panels)


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
