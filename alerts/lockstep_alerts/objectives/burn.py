"""Too many bad events in a window: more than chance makes of the objective, and a fast burn.

A burn rate alone fits a service of thousands of requests. A cluster finishes 50 jobs a week: at an
objective of 95 % two failures in six hours burn 22 times too fast, and chance brings them about
nine times a month. So two limits hold at once.

Null hypothesis: bad events are a Poisson process that uses up the budget exactly, with a mean of
``mu`` in the window. The first limit is ``mu + sigmas * sqrt(mu) + spare``. The assumption is that
failures are independent; where one cause makes several, they come sooner, which is what a page is
for. The second limit is ``burn_rate * mu``. It matters where events are many and a small excess is
certain, but small. Together: docs/decisions/0022-event-objectives.md, ``make bench-alerts``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep_alerts.conditions.condition import Case, Timing
from lockstep_alerts.objectives.counts import bad_by_window, counts, labels_of
from lockstep_alerts.objectives.objective import PERIOD, Objective
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import EVENT_SLOS, SLO, SLO_COUNTS_SECONDS, SLO_WINDOWS, WINDOW
from lockstep_catalogue.promql import eq, select
from lockstep_catalogue.recorded_objectives import BAD_EVENTS, TOTAL_EVENTS
from lockstep_catalogue.windows import ScrapeWindows

_ON_CLUSTER = f"on ({CLUSTER.name})"
# The largest burn rate there can be is 1 / bad_ratio: beyond this share of it no rule can fire.
_FEASIBLE_RATIO = 0.8
_FEW_EVENTS, _MANY_EVENTS = 200, 40_000  # in 28 days: 50 and 10,000 a week


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """How many bad events in one window are too many.

    Attributes:
        window: of the ledger's counts.
        recent: a shorter window that must hold a bad event too, so that the alert ends soon after
            the last one; None where that does not matter.
        sigmas: standard deviations above the mean; with the spare, a window passes by chance in
            1e-4 to 2e-3 of all times at 3 and 1.5, and in 2e-4 to 2e-2 at 2 and 1.
        spare: events above the mean in any case: one bad event is never enough.
        burn_rate: times as fast as the budget allows, at least; None where chance alone decides.
    """

    window: str
    recent: str | None
    sigmas: float
    spare: float
    burn_rate: float | None = None

    def allowance(self, bad_ratio: float) -> float:
        """Part of all events in 28 days that may be bad in this window."""
        return bad_ratio * SLO_WINDOWS[self.window] / SLO_WINDOWS[PERIOD]

    def feasible_burn_rate(self, bad_ratio: float) -> float:
        """The burn rate, or what the objective leaves possible of it; 0 without one."""
        return min(self.burn_rate or 0.0, _FEASIBLE_RATIO / bad_ratio)

    def least_bad(self, bad_ratio: float, total: float) -> int:
        """The fewest bad events that are too many, at so many events in 28 days."""
        mean = self.allowance(bad_ratio) * total
        by_chance = mean + self.sigmas * math.sqrt(mean) + self.spare
        return math.floor(max(by_chance, self.feasible_burn_rate(bad_ratio) * mean)) + 1

    def expression(self, objective: Objective) -> str:
        """PromQL of this limit; its value is the number of bad events in the window."""
        slo = eq(SLO, objective.slo)
        total = select(TOTAL_EVENTS, slo, eq(WINDOW, PERIOD))
        bad = select(BAD_EVENTS, slo, eq(WINDOW, self.window))
        share = self.allowance(objective.bad_ratio)
        mean = f"{share:.6g} * {total}"
        by_chance = f"({mean} + {self.sigmas:g} * sqrt({mean}) + {self.spare:g})"
        # ``group_left`` keeps the labels of the left side, of which one is the window.
        lines = [f"{bad} > {_ON_CLUSTER} group_left () {by_chance}"]
        if self.burn_rate is not None:
            burnt = f"{self.feasible_burn_rate(objective.bad_ratio) * share:.6g} * {total}"
            lines.append(f"and {_ON_CLUSTER} ({bad} > {_ON_CLUSTER} ({burnt}))")
        if self.recent is not None:
            recent = select(BAD_EVENTS, slo, eq(WINDOW, self.recent))
            lines.append(f"and {_ON_CLUSTER} ({recent} > 0)")
        return "\n".join(lines)


# Burn rates of the usual table: 5 % of the budget in six hours, 10 % in a day.
PAGE = (
    Limit(window="6h", recent="30m", sigmas=3, spare=1.5, burn_rate=5.6),
    Limit(window="24h", recent="2h", sigmas=3, spare=1.5, burn_rate=2.8),
)
TICKET = (
    Limit(window="24h", recent=None, sigmas=2, spare=1),
    Limit(window="3d", recent=None, sigmas=2, spare=1),
    Limit(window="7d", recent=None, sigmas=2, spare=1),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Burn:
    """The budget of an objective is spent too fast by one of these limits."""

    objective: Objective
    limits: tuple[Limit, ...]

    def expression(self, windows: ScrapeWindows) -> str:
        """Bad events in the window that a label names."""
        del windows  # the ledger counts the events, and not the scrapes
        return "\nor\n".join(limit.expression(self.objective) for limit in self.limits)

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """Time between two counts of the ledger."""
        del windows
        return math.ceil(SLO_COUNTS_SECONDS)

    def evidence(self) -> str:
        """Nothing: the window is a label, and the number is the value."""
        return ""

    def cases(self, timing: Timing) -> list[Case]:
        """Each window by itself at its limit, one event fewer, and where nothing ran."""
        first, bad_ratio = self.limits[0], self.objective.bad_ratio
        outlines: list[tuple[str, int, Mapping[str, int], str | None]] = [
            (
                f"{limit.window} at its limit",
                _FEW_EVENTS,
                bad_by_window(limit.window, limit.least_bad(bad_ratio, _FEW_EVENTS)),
                limit.window,
            )
            for limit in self.limits
        ]
        fewer, of_many_fewer = (
            bad_by_window(first.window, first.least_bad(bad_ratio, total) - 1)
            for total in (_FEW_EVENTS, _MANY_EVENTS)
        )
        outlines += [
            ("one event fewer", _FEW_EVENTS, fewer, None),
            ("many events, one fewer", _MANY_EVENTS, of_many_fewer, None),
            ("nothing ran", 0, {}, None),
        ]
        if first.recent is not None:
            at_limit = first.least_bad(bad_ratio, _FEW_EVENTS)
            old = bad_by_window(first.window, at_limit, num_recent=0)
            outlines.append(("the last event is long ago", _FEW_EVENTS, old, None))
        if self.objective.slo != EVENT_SLOS[0]:
            # Objectives differ in their figures only, and each case takes promtool a second.
            outlines = [outlines[0], outlines[len(self.limits)]]
        return [
            Case(
                name=name,
                series=counts(timing, self.objective.slo, total, bad),
                at_seconds=timing.fires_by_seconds,
                fires=None if window is None else labels_of(self.objective.slo, window),
            )
            for name, total, bad, window in outlines
        ]
