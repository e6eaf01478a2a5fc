"""The report on recorded steps, in the form that renderers meet.

Modules that load rich, plotly or jinja2 are imported where they are used: JSON needs none of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep_catalogue.vocabulary import Severity
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.job_report import Card, Page, TraceEvent
from lockstep_reports.render.advice import step_advice
from lockstep_reports.render.missing_reasons import step_missing_reasons
from lockstep_reports.render.step_text import cards, headline, severity, story
from lockstep_reports.step_analysis import StepAnalysis
from lockstep_reports.step_json import step_json
from lockstep_reports.verdict.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True, eq=False)
class StepReport:
    """A ``JobReport`` on what was analysed of a job's steps."""

    analysis: StepAnalysis

    @property
    def verdict(self) -> Verdict:
        """Who was slow."""
        return self.analysis.verdict

    @property
    def headline(self) -> str:
        """The verdict in one short sentence."""
        return headline(self.analysis)

    @property
    def severity(self) -> Severity:
        """What the headline is about."""
        return severity(self.analysis)

    @property
    def story(self) -> str:
        """Since when, how long, at what cost."""
        return story(self.analysis)

    @property
    def cards(self) -> tuple[Card, ...]:
        """Loss, duration and number of the steps, productive share."""
        return cards(self.analysis)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do next; empty when nobody was slow."""
        return step_advice(self.analysis)

    @property
    def missing_reasons(self) -> dict[str, str]:
        """Reason by name of the JSON field that is null."""
        return step_missing_reasons(self.analysis)

    def to_json(self) -> dict[str, Any]:
        """The fields of the published form; unknown is None."""
        return step_json(self.analysis)

    def step_durations(self) -> dict[str, Matrix]:
        """Seconds [steps] of the whole step and, as medians over the ranks, of its phases."""
        medians = {
            phase: nan_stats.median(seconds, axis=0)
            for phase, seconds in self.analysis.steps.phases.items()
        }
        spent = {phase: seconds for phase, seconds in medians.items() if np.nansum(seconds) > 0}
        return {"step": self.analysis.scores.step_seconds, **spent}

    def key_figures(self) -> dict[str, float | None]:
        """Goodput and loss; amounts per step, because two runs differ in length."""
        cost, count = self.analysis.cost, self.analysis.summary.count
        lost_money = cost.lost_money
        return {
            "goodput_ratio": self.analysis.goodput.ratio,
            "lost_ratio": cost.lost_ratio,
            "lost_gpu_seconds_per_step": cost.lost_gpu_seconds / count if count else None,
            "lost_money_per_step": None if lost_money is None or not count else lost_money / count,
        }

    def page(self) -> Page:
        """Figures and tables of the HTML page."""
        from lockstep_reports.render.step_page import step_page  # noqa: PLC0415  # loads plotly

        return step_page(self.analysis)

    def markdown_body(self) -> list[str]:
        """Verdict, evidence, episodes, latest ranks and costs."""
        from lockstep_reports.render.markdown import step_markdown  # noqa: PLC0415  # as above

        return step_markdown(self.analysis)

    def markdown_footer(self) -> list[str]:
        """The end of the attempt, and what was not read or judged."""
        from lockstep_reports.render.markdown import step_markdown_footer  # noqa: PLC0415  # as above

        return step_markdown_footer(self.analysis)

    def terminal_blocks(self) -> "Iterable[RenderableType]":
        """Verdict, evidence, episodes, arrivals, costs and the end of the attempt."""
        from lockstep_reports.render.step_terminal import step_blocks  # noqa: PLC0415  # loads rich

        return step_blocks(self.analysis)

    def trace_events(self) -> Iterable[TraceEvent]:
        """Operations or phases by rank, and the episodes."""
        from lockstep_reports.render.perfetto import step_trace_events  # noqa: PLC0415  # as above

        return step_trace_events(self.analysis)
