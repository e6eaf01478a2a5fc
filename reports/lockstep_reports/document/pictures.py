"""Which figures a document on steps has; each is drawn by plotly where a page shows it."""

from functools import partial

from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.document.missing_reasons import heat_map_quantity, why_no_phases
from lockstep_reports.document.model import Figure

HEAT_MAPS = {
    "lateness": (
        "Who was late, step by step",
        "Milliseconds by which each rank came later to the synchronisation than the earliest one.",
    ),
    "own": (
        "Who was slower than usual, step by step",
        "How much longer than its own median each worker took, in percent.",
    ),
}
"""Title and hint of a heat map, by what it shows."""
# What a curve of step times can prove depends on whose times they are.
STEP_HINTS = {
    "lateness": "All ranks share it, so it shows when, not who.",
    "own": "Median over the workers, whose times are their own.",
    "nothing": "One series represents the job.",
}


def list_figures(analysis: StepAnalysis) -> dict[str, Figure]:
    """The figures by name."""
    names = []
    if heat_map_quantity(analysis) != "nothing":
        names.append("heat_map")
    if len(analysis.steps.numbers) > 1:
        names.append("step_times")
    if why_no_phases(analysis) is None:
        names.append("phases")
    if analysis.replayed is not None and analysis.replayed.what_if is not None:
        names += ["slowed_by", "timeline"]
    return {name: Figure(name, partial(_draw, name, analysis)) for name in names}


def _draw(name: str, analysis: StepAnalysis) -> str:
    from lockstep_reports.document.figures import draw_figure  # noqa: PLC0415  # loads plotly

    return draw_figure(name, analysis)
