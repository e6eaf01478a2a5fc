"""Counts of an imagined ledger, in promtool's notation, for the cases of the objectives."""

from collections.abc import Mapping

from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import SLO, SLO_EVENT, SLO_EVENTS, SLO_WINDOWS, WINDOW
from lockstep_catalogue.recorded import PERIOD

from ..synthetic import Samples, Stretch, Timing, growing, samples, steady

_CLUSTER, _INSTANCE = "c1", "ledger:9450"


def labels_of(slo: str, window: str) -> dict[str, str]:
    """Labels of an objective's counts in a window."""
    return {CLUSTER.name: _CLUSTER, SLO.name: slo, WINDOW.name: window}


def bad_by_window(window: str, num_bad: int, num_recent: int = 1) -> dict[str, int]:
    """All bad events lie within this window, and ``num_recent`` of them in the shortest ones."""
    seconds = SLO_WINDOWS[window]
    return {
        name: num_bad if length >= seconds else num_recent for name, length in SLO_WINDOWS.items()
    }


def counts(timing: Timing, slo: str, total: int, bad: Mapping[str, int]) -> list[Samples]:
    """Counts in every window; the bad events come at the onset, all at once.

    Args:
        timing: the onset, and how long the counts go on after it.
        slo: name of the objective.
        total: events in 28 days; shorter windows hold their share.
        bad: bad events by window.
    """
    onset, after = timing.onset_seconds, timing.fires_within_seconds
    series = []
    for window, seconds in SLO_WINDOWS.items():
        num_bad = bad.get(window, 0)
        events = max(num_bad, round(total * seconds / SLO_WINDOWS[PERIOD]))
        failing = (Stretch(onset, 0), Stretch(1, -num_bad), Stretch(after, 0))
        courses = {
            "total": steady(events, onset + after),
            "good": growing(*failing, start=events),
        }
        series += [
            samples(
                SLO_EVENTS,
                course,
                instance=_INSTANCE,
                **labels_of(slo, window),
                **{SLO_EVENT.name: kind},
            )
            for kind, course in courses.items()
        ]
    return series
