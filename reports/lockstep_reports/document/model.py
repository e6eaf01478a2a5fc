"""The one document of a report: each renderer shows it whole, whatever it was made from."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from lockstep_catalogue.vocabulary import Severity
from lockstep_reports.arrays import Matrix
from lockstep_reports.document.published import Report
from lockstep_reports.wording import duration, percent

TraceEvent: TypeAlias = dict[str, Any]
"""One event of a Chrome trace."""
Sentences: TypeAlias = tuple[str, ...]


class Card(NamedTuple):
    """One key figure of a report: its value with the unit, what it is, and a remark."""

    value: str
    label: str
    remark: str


class Row(NamedTuple):
    """Cells of a table's row; ``detail`` is longer text that a page shows below it."""

    cells: tuple[str, ...]
    is_marked: bool = False
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first ``num_texts`` of its columns hold text, the others numbers."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    num_texts: int


class Share(NamedTuple):
    """Time in one state: seconds, share of all, colour, and money where there is a price."""

    name: str
    colour: str
    seconds: float
    ratio: float
    money: float | None = None


@dataclass(frozen=True, slots=True)
class Shares:
    """Where time went: parts of one whole, as a bar and a table, or as a sentence."""

    parts: tuple[Share, ...]

    def table(self) -> Table:
        """The parts that can be seen, with their money where one has any."""
        has_money = any(part.money is not None for part in self.parts)
        rows = (
            (part.name, duration(part.seconds), percent(part.ratio), f"{part.money or 0.0:,.2f}")
            for part in self.parts
            if part.ratio >= 0.0005  # noqa: PLR2004  # 0.0 % to the reader
        )
        columns = ("state", "GPU time", "share", "money")[: 3 + has_money]
        return Table(columns, tuple(Row(row[: len(columns)]) for row in rows), 1)

    def sentence(self, title: str) -> str:
        """The parts by their share."""
        parts = (f"{part.name} {percent(part.ratio)}" for part in self.parts if part.seconds > 0)
        return f"{title}: {', '.join(parts)}."


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture for a page: HTML, drawn only where it is shown, perhaps by plotly's script."""

    name: str
    draw: Callable[[], str]
    by_plotly: bool = True


Block: TypeAlias = Sentences | Table | Shares | Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of a document; text formats show what ``is_brief``, pages a hint how to read it."""

    title: str
    blocks: tuple[Block, ...]
    hint: str = ""
    is_brief: bool = True


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Document:
    """A report.

    Attributes:
        advice: what to do next, most urgent first; empty when there is nothing to do.
        remarks: how the job ended, and what was not read or judged.
        durations: seconds [steps] of the whole step, named ``step``, and of each phase.
        key_figures: figures of the run that a comparison puts side by side, by name with unit.
        trace_events: gives Chrome trace events, with the names of their tracks.
    """

    name: str
    headline: str
    severity: Severity
    story: str
    published: Report
    facts: Sentences = ()
    cards: tuple[Card, ...] = ()
    sections: tuple[Section, ...] = ()
    advice: Sentences = ()
    remarks: Sentences = ()
    links: tuple[tuple[str, str], ...] = ()
    durations: Mapping[str, Matrix]
    key_figures: Mapping[str, float | None]
    trace_events: Callable[[], Iterable[TraceEvent]] = tuple
