"""The windows of objectives, as slos.yaml lists them: how long, how fast, and how sure."""

from dataclasses import dataclass

from lockstep_alerts.entry import Entry
from lockstep_alerts.model import Duration
from lockstep_alerts.objectives.limits import BurnLimit, Limit
from lockstep_catalogue.ledger import SLO_WINDOWS
from lockstep_catalogue.recorded_objectives import SLICE_PERIOD
from lockstep_catalogue.recorded_slices import BASELINE

_MOST_SIGMAS, _MOST_SPARE, _MOST_BURN = 10.0, 100.0, 1000.0
_EVENT_KEYS, _EVENT_OPTIONAL = ("window", "sigmas", "spare"), ("recent", "burn_rate")
_SECOND_KEYS = ("window", "recent", "burn_rate")


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
        event_page=tuple(map(_event_limit, events.entries("page"))),
        event_ticket=tuple(map(_event_limit, events.entries("ticket"))),
        gpu_second_page=tuple(map(_burn_limit, seconds.entries("page"))),
        gpu_second_ticket=tuple(map(_burn_limit, seconds.entries("ticket"))),
    )


def _window(entry: Entry, field: str) -> str:
    return entry.choice(field, *SLO_WINDOWS)


def _recent(entry: Entry) -> str:
    window, recent = _window(entry, "window"), _window(entry, "recent")
    if SLO_WINDOWS[recent] >= SLO_WINDOWS[window]:
        raise entry.refuse("recent", f"must be shorter than the window, {window}")
    return recent


def _event_limit(entry: Entry) -> Limit:
    entry.check_keys(_EVENT_KEYS, _EVENT_OPTIONAL)
    has_burn = entry.has("burn_rate")
    return Limit(
        window=_window(entry, "window"),
        recent=_recent(entry) if entry.has("recent") else None,
        sigmas=entry.number("sigmas", 0, _MOST_SIGMAS),
        spare=entry.number("spare", 0, _MOST_SPARE),
        burn_rate=entry.number("burn_rate", 0, _MOST_BURN) if has_burn else None,
    )


def _burn_limit(entry: Entry) -> BurnLimit:
    entry.check_keys(_SECOND_KEYS, ())
    return BurnLimit(
        window=_window(entry, "window"),
        recent=_recent(entry),
        burn_rate=entry.number("burn_rate", 0, _MOST_BURN),
    )
