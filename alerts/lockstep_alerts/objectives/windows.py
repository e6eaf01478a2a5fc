"""The windows of objectives, as slos.yaml lists them: how long, how fast, and how sure."""

from dataclasses import dataclass
from typing import TypeVar

from lockstep_alerts.objectives.limits import BurnLimit, Limit
from lockstep_alerts.reading.entry import Entry
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.reading.quantities import read_quantities
from lockstep_alerts.rules.slices import BASELINE
from lockstep_catalogue.ledger import SLO_WINDOWS
from lockstep_catalogue.recorded import SLICE_PERIOD

_AnyLimit = TypeVar("_AnyLimit", Limit, BurnLimit)


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveWindows:
    """Limits of pages and tickets, for events and for GPU-seconds.

    Attributes:
        retention: how long the Prometheus that evaluates the rules keeps samples.
    """

    retention: Duration
    event_page: tuple[Limit, ...]
    event_ticket: tuple[Limit, ...]
    gpu_second_page: tuple[BurnLimit, ...]
    gpu_second_ticket: tuple[BurnLimit, ...]


def read_windows(entry: Entry) -> ObjectiveWindows:
    """The windows of a spec.

    Raises:
        SpecError: a field is unknown, missing or outside of its bounds, or a window is longer than
            what is kept.
    """
    entry.check_keys(("retention", "events", "gpu_seconds"), ())
    retention = entry.duration("retention")
    for window, purpose in ((SLICE_PERIOD, "slices"), (BASELINE, "baselines of jobs")):
        if Duration(window).seconds > retention.seconds:
            raise entry.refuse(
                "retention",
                f"{purpose} are counted over {window}; keep samples that long "
                f"(--storage.tsdb.retention.time={window} or more)",
            )
    events, seconds = entry.entry("events"), entry.entry("gpu_seconds")
    for each in (events, seconds):
        each.check_keys(("page", "ticket"), ())
    return ObjectiveWindows(
        retention=retention,
        event_page=tuple(_read_limit(Limit, each) for each in events.entries("page")),
        event_ticket=tuple(_read_limit(Limit, each) for each in events.entries("ticket")),
        gpu_second_page=tuple(_read_limit(BurnLimit, each) for each in seconds.entries("page")),
        gpu_second_ticket=tuple(_read_limit(BurnLimit, each) for each in seconds.entries("ticket")),
    )


def _read_limit(kind: type[_AnyLimit], entry: Entry) -> _AnyLimit:
    limit = read_quantities(kind, entry)
    if limit.recent is not None and SLO_WINDOWS[limit.recent] >= SLO_WINDOWS[limit.window]:
        raise entry.refuse("recent", f"must be shorter than the window, {limit.window}")
    return limit
