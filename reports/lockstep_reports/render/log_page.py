"""The content of the HTML page of a report on a log; it needs no script."""

from typing import NamedTuple

from lockstep_reports.job_report import Page
from lockstep_reports.log_analysis import LogAnalysis
from lockstep_reports.step_losses import loss_sentence

_MAX_POINTS, _WIDTH, _HEIGHT = 800, 1000.0, 160.0


class _BarPart(NamedTuple):
    name: str
    colour: str
    seconds: float
    share: float


def log_page(analysis: LogAnalysis) -> Page:
    """The bar of the wall clock, the first lines, and the line of step times."""
    content = {
        "analysis": analysis,
        "incident": analysis.incident,
        "bar": _wall_clock_bar(analysis),
        "sparkline": _sparkline(analysis),
        "losses": [loss_sentence(loss) for loss in analysis.summary.losses],
    }
    return Page(template="log.html.j2", content=content)


def _wall_clock_bar(analysis: LogAnalysis) -> list[_BarPart]:
    """Parts of the wall clock, in the order of time."""
    incident = analysis.incident
    wall = incident.wall_seconds
    if not wall:
        return []
    spans = [
        ("start-up", "#e69f00", incident.startup_seconds),
        ("run", "#009e73", incident.run_seconds),
        ("after the last progress", "#a3264a", incident.seconds_after_last_progress),
    ]
    parts = [
        _BarPart(name, colour, seconds, seconds / wall)
        for name, colour, seconds in spans
        if seconds
    ]
    rest = wall - sum(part.seconds for part in parts)
    if rest > 0:
        parts.append(_BarPart("unknown", "#ffffff", rest, rest / wall))
    return parts


def _sparkline(analysis: LogAnalysis) -> str:
    """Step times as points of a line in a box of 1000 x 160; the highest of each bin."""
    seconds = analysis.log.step_seconds
    if len(seconds) <= 1:
        return ""
    size = -(-len(seconds) // _MAX_POINTS)
    # The highest of each bin and not the mean: a single slow step must stay visible.
    tops = [max(seconds[begin : begin + size]) for begin in range(0, len(seconds), size)]
    ordered = sorted(seconds)
    median = ordered[len(ordered) // 2]
    # A pause is cut off at three medians, and an even curve keeps air above it.
    ceiling = max(1.5 * median, min(ordered[-1], 3 * median)) or 1.0
    spacing = _WIDTH / max(1, len(tops) - 1)
    return " ".join(
        f"{index * spacing:.1f},{_HEIGHT * (1 - min(1.0, top / ceiling)):.1f}"
        for index, top in enumerate(tops)
    )
