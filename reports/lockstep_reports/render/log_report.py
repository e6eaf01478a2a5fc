"""The report on a log, in the form that renderers meet."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep_catalogue.vocabulary import Severity
from lockstep_reports.arrays import Matrix
from lockstep_reports.job_report import Card, Page, TraceEvent
from lockstep_reports.log_analysis import LogAnalysis, log_json
from lockstep_reports.render.advice import log_advice
from lockstep_reports.render.log_text import (
    log_cards,
    log_headline,
    log_markdown,
    log_severity,
    log_story,
)
from lockstep_reports.render.missing_reasons import log_missing_reasons
from lockstep_reports.verdict.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True, eq=False)
class LogReport:
    """A ``JobReport`` on what was analysed of a job's log."""

    analysis: LogAnalysis

    @property
    def verdict(self) -> Verdict:
        """Who is blamed for the end."""
        return self.analysis.verdict

    @property
    def headline(self) -> str:
        """The outcome, and who is blamed for it."""
        return log_headline(self.analysis)

    @property
    def severity(self) -> Severity:
        """What the headline is about."""
        return log_severity(self.analysis)

    @property
    def story(self) -> str:
        """The reason, and how much of the time passed after the last progress."""
        return log_story(self.analysis)

    @property
    def cards(self) -> tuple[Card, ...]:
        """Spans of the job, median step and number of ranks."""
        return log_cards(self.analysis)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do next; empty when the job succeeded or runs."""
        return log_advice(self.analysis)

    @property
    def missing_reasons(self) -> dict[str, str]:
        """Reason by name of the JSON field that is null."""
        return log_missing_reasons(self.analysis)

    def to_json(self) -> dict[str, Any]:
        """The fields of the published form; unknown is None."""
        return log_json(self.analysis)

    def step_durations(self) -> dict[str, Matrix]:
        """Seconds [steps] of the whole step; a log has no phases."""
        return {"step": np.array(self.analysis.log.step_seconds, dtype=np.float64)}

    def key_figures(self) -> dict[str, float | None]:
        """Seconds from the last progress to the end."""
        seconds = self.analysis.incident.seconds_after_last_progress
        return {"seconds_after_last_progress": seconds}

    def page(self) -> Page:
        """Wall clock, first lines and step times of the HTML page."""
        from lockstep_reports.render.log_page import log_page  # noqa: PLC0415  # only for HTML

        return log_page(self.analysis)

    def markdown_body(self) -> list[str]:
        """Headline, story, cards, first lines and notes."""
        return log_markdown(self.analysis)

    def markdown_footer(self) -> list[str]:
        """Nothing: the notes are part of the body."""
        return []

    def terminal_blocks(self) -> "Iterable[RenderableType]":
        """Outcome, key figures, first lines, slow steps and notes."""
        from lockstep_reports.render.log_terminal import log_blocks  # noqa: PLC0415  # loads rich

        return log_blocks(self.analysis)

    def trace_events(self) -> Iterable[TraceEvent]:
        """An instant for each first line that has a time."""
        from lockstep_reports.render.perfetto import log_trace_events  # noqa: PLC0415  # only for it

        return log_trace_events(self.analysis)
