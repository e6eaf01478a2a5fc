"""Windows of objectives with their limits: bad events, and how fast a budget may burn."""

import math
from dataclasses import dataclass
from typing import Annotated, TypeVar

from lockstep_alerts.reading.entry import Entry, choice, number, read_quantities
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.rules.slices import BASELINE
from lockstep_catalogue.ledger import SLO_WINDOWS
from lockstep_catalogue.recorded import PERIOD, SLICE_PERIOD

SloWindow = Annotated[str, choice(*SLO_WINDOWS)]
"""A window for which the ledger counts."""
_BURN_RATE = number(0, 1000)
FEASIBLE_RATIO = 0.8
"""Share of the largest burn rate there can be, 1 over the budget, from which on none is reached:
four in five of all events would have to be bad."""


def feasible_burn_rate(bad_ratio: float) -> float:
    """The highest burn rate that a rule may ask for at this error budget."""
    return FEASIBLE_RATIO / bad_ratio


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """How many bad events in one window are too many.

    Attributes:
        recent: a shorter window that must hold a bad event too, so that the alert ends soon after
            the last one; None where that does not matter.
        sigmas: standard deviations above the mean; with the spare, a window passes by chance in
            1e-4 to 2e-3 of all times at 3 and 1.5, and in 2e-4 to 2e-2 at 2 and 1.
        spare: events above the mean in any case: one bad event is never enough.
        burn_rate: times as fast as the budget allows, at least; None where chance alone decides.
        cluster_size: bad events that one incident makes, on average: a node that dies under two
            jobs is one incident, as one under a single job. Chance and spare count incidents.
    """

    window: SloWindow
    recent: Annotated[str | None, choice(*SLO_WINDOWS)] = None
    sigmas: Annotated[float, number(0, 10)]
    spare: Annotated[float, number(0, 100)]
    burn_rate: Annotated[float | None, _BURN_RATE] = None
    cluster_size: Annotated[float, number(0, 100)] = 1

    def events(self, per_period: float, period: str = PERIOD) -> float:
        """Events that end in the window, where they come evenly."""
        return per_period * SLO_WINDOWS[self.window] / SLO_WINDOWS[period]

    def least_bad(self, bad_ratio: float, events: float) -> int:
        """The fewest bad events that are too many, where so many end in the window."""
        least = 0
        while True:
            # Where few end, the bad ones are among them.
            mean = bad_ratio * max(events, least)
            by_chance = mean + self.sigmas * math.sqrt(self.cluster_size * mean)
            too_many = max(by_chance + self.spares, (self.burn_rate or 0.0) * mean)
            if least > too_many:
                return least
            least = max(least + 1, math.floor(too_many) + 1)

    @property
    def spares(self) -> float:
        """Events above the mean in any case."""
        return self.spare * self.cluster_size


@dataclass(frozen=True, kw_only=True, slots=True)
class BurnLimit:
    """How fast the budget of GPU-seconds may burn, over a window and lately.

    Attributes:
        recent: a shorter window in which it burns as fast, so that the alert ends soon after.
    """

    window: SloWindow
    recent: SloWindow
    burn_rate: Annotated[float, _BURN_RATE]

    def bad_share(self, bad_ratio: float) -> float:
        """Share of bad GPU-seconds from which on it burns too fast."""
        return self.burn_rate * bad_ratio

    def budget_share(self) -> float:
        """Share of the budget of 28 days that is gone after the window at this rate."""
        return self.burn_rate * SLO_WINDOWS[self.window] / SLO_WINDOWS[PERIOD]


_AnyLimit = TypeVar("_AnyLimit", Limit, BurnLimit)


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveWindows:
    """Limits by events and GPU-seconds, for a Prometheus that keeps samples for ``retention``."""

    retention: Duration
    event_page: tuple[Limit, ...]
    event_ticket: tuple[Limit, ...]
    gpu_second_page: tuple[BurnLimit, ...]
    gpu_second_ticket: tuple[BurnLimit, ...]


def read_windows(entry: Entry) -> ObjectiveWindows:
    """The windows of a spec; SpecError for a wrong one, or one longer than what is kept."""
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
