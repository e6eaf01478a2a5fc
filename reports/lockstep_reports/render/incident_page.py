"""The report on a log as one self-contained page: no network, no script, no other file."""

from lockstep_reports.compare import Comparison
from lockstep_reports.incident import LogReport
from lockstep_reports.render.incident_text import figures_told, incident_headline, incident_story
from lockstep_reports.render.page_templates import page
from lockstep_reports.wording import UNKNOWN


def incident_html(report: LogReport, comparison: Comparison | None = None) -> str:
    """The whole page."""
    return page(
        "incident.html.j2",
        report,
        comparison,
        incident=report.incident,
        headline=incident_headline(report),
        story=incident_story(report),
        cards=[card for card in figures_told(report) if card[0] != UNKNOWN],
        bar=_bar(report),
        sparks=_sparks(report),
    )


def _bar(report: LogReport) -> list[tuple[str, str, float, float]]:
    """Name, colour, seconds and share of the wall clock, in the order of time."""
    incident = report.incident
    wall = incident.wall_seconds
    if not wall:
        return []
    told = [
        ("start-up", "#e69f00", incident.startup_seconds),
        ("run", "#009e73", incident.run_seconds),
        ("after the last progress", "#a3264a", incident.seconds_after_last_progress),
    ]
    known = [(name, colour, seconds, seconds / wall) for name, colour, seconds in told if seconds]
    rest = wall - sum(seconds for _, _, seconds, _ in known)
    if rest > 0:
        known.append(("unknown", "#ffffff", rest, rest / wall))
    return known


_POINTS, _WIDTH, _HEIGHT = 800, 1000.0, 160.0


def _sparks(report: LogReport) -> str:
    """The step times as points of a line in a box of 1000 x 160; the highest of each bin."""
    seconds = report.log.step_seconds
    if len(seconds) <= 1:
        return ""
    size = -(-len(seconds) // _POINTS)
    tops = [max(seconds[place : place + size]) for place in range(0, len(seconds), size)]
    ordered = sorted(seconds)
    median = ordered[len(ordered) // 2]
    roof = max(1.5 * median, min(ordered[-1], 3 * median)) or 1.0
    across = _WIDTH / max(1, len(tops) - 1)
    return " ".join(
        f"{place * across:.1f},{_HEIGHT * (1 - min(1.0, top / roof)):.1f}"
        for place, top in enumerate(tops)
    )
