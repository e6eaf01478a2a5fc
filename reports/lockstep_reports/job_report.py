"""The one form in which renderers and comparisons meet a report, whatever it was made from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from lockstep_catalogue.vocabulary import Severity
from lockstep_reports.arrays import Matrix
from lockstep_reports.verdict.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

SCHEMA_VERSION = 1
TraceEvent: TypeAlias = dict[str, Any]
"""One event of a Chrome trace."""


class Card(NamedTuple):
    """One key figure of a report: its value with the unit, what it is, and a remark."""

    value: str
    label: str
    remark: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The part of an HTML page that differs by kind of report.

    Attributes:
        template: name of the template, which extends ``base.html.j2``.
        content: its variables.
    """

    template: str
    content: dict[str, Any]


class JobReport(Protocol):
    """What every kind of report offers. A new kind implements it, and no renderer changes."""

    @property
    def verdict(self) -> Verdict:
        """Who was slow, or to blame for the end."""

    @property
    def headline(self) -> str:
        """The verdict in one short sentence."""

    @property
    def severity(self) -> Severity:
        """What the headline is about; it gives the page its colour."""

    @property
    def story(self) -> str:
        """The sentences after the headline."""

    @property
    def cards(self) -> tuple[Card, ...]:
        """The key figures, most important first."""

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do next, most urgent first; empty when there is nothing to do."""

    @property
    def missing_reasons(self) -> dict[str, str]:
        """Reason by name of the JSON field that is null, in the order of the JSON."""

    def to_json(self) -> dict[str, Any]:
        """The fields of the published form that this kind fills; unknown is None."""

    def step_durations(self) -> dict[str, Matrix]:
        """Seconds [steps] of the whole step, named ``step``, and of each phase with any time."""

    def key_figures(self) -> dict[str, float | None]:
        """Figures of the whole run that a comparison puts side by side, by name with its unit."""

    def page(self) -> Page:
        """Template and content of the HTML page."""

    def markdown_body(self) -> list[str]:
        """Lines of Markdown before the comparison and the advice."""

    def markdown_footer(self) -> list[str]:
        """Lines of Markdown after them."""

    def terminal_blocks(self) -> "Iterable[RenderableType]":
        """What the terminal prints before the comparison and the advice."""

    def trace_events(self) -> Iterable[TraceEvent]:
        """Chrome trace events, with the names of their tracks; without times only the names."""
