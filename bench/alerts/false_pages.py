"""False pages and incidents caught, of our rule and of two that are usual, over simulated months.

Jobs end as a Poisson process; in other patterns failures come in pairs, as when a node dies under
two jobs, all jobs end in office hours, or a third of them in sweeps of forty. In one set of months
exactly the share that the objective allows fails, so that every page is false; in the other, 60 %
fail for a day. The rules are evaluated 30 seconds after each end of a job, for nothing else makes a
count grow. Pages within six hours are one incident.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep_alerts.objectives.objective import Limit
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_catalogue.ledger import SLO_WINDOWS
from lockstep_catalogue.recorded import PERIOD

WINDOWS = read_spec(spec_path()).objective_windows
HOUR = 3600.0
WEEK_SECONDS = 7 * 24 * HOUR
PERIOD_SECONDS = SLO_WINDOWS[PERIOD]
INCIDENT_SECONDS, INCIDENT_BAD_RATIO = 24 * HOUR, 0.6
EPISODE_SECONDS = 6 * HOUR
DELAY_SECONDS = 30.0
PER_WEEK = (10, 50, 200, 1000)
PATTERNS = ("independent", "pairs", "office hours", "sweeps")
SWEEP, SWEEP_SECONDS, SWEEP_RATIO = 40, 600.0, 1 / 3
OBJECTIVES = (0.9, 0.95, 0.99)

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Month:
    """Ends of jobs over two periods, of which the first only fills the windows.

    Attributes:
        ends: shape ``(jobs,)``, seconds, ascending.
        failures: shape ``(failures,)``, seconds, a part of ``ends``.
    """

    ends: Floats
    failures: Floats

    def bad(self, seconds: float) -> NDArray[np.intp]:
        """Failures in the window that ends at each moment of evaluation, of shape ``(jobs,)``."""
        return self._counts(self.failures, seconds)

    def jobs(self, seconds: float) -> NDArray[np.intp]:
        """Jobs that ended in that window, of shape ``(jobs,)``."""
        return self._counts(self.ends, seconds)

    def _counts(self, times: Floats, seconds: float) -> NDArray[np.intp]:
        now = self.ends + DELAY_SECONDS
        return np.searchsorted(times, now, "right") - np.searchsorted(times, now - seconds, "right")


Rule = Callable[[Month, float], Flags]


def shipped(month: Month, good_ratio: float) -> Flags:
    """The limits of the pages in slos.yaml."""
    return _by_limits(WINDOWS.event_page, month, good_ratio)


def shipped_tickets(month: Month, good_ratio: float) -> Flags:
    """The limits of the tickets."""
    return _by_limits(WINDOWS.event_ticket, month, good_ratio)


def _by_limits(limits: Sequence[Limit], month: Month, good_ratio: float) -> Flags:
    pages = np.zeros(len(month.ends), dtype=np.bool_)
    for limit in limits:
        ended = month.jobs(SLO_WINDOWS[limit.window])
        totals, of_total = np.unique(ended, return_inverse=True)
        least = np.array([limit.least_bad(1 - good_ratio, float(total)) for total in totals])
        recent = month.bad(SLO_WINDOWS[limit.recent or limit.window])
        pages |= (month.bad(SLO_WINDOWS[limit.window]) >= least[of_total]) & (recent > 0)
    return pages


def textbook(month: Month, good_ratio: float) -> Flags:
    """14.4 times the budget in 1 h and 5 m, or 6 times in 6 h and 30 m."""
    pages = np.zeros(len(month.ends), dtype=np.bool_)
    for burn_rate, hours in ((14.4, (1, 1 / 12)), (6.0, (6, 0.5))):
        burns = [
            month.bad(length * HOUR) > burn_rate * (1 - good_ratio) * month.jobs(length * HOUR)
            for length in hours
        ]
        pages |= burns[0] & burns[1]
    return pages


def fixed_share(month: Month, good_ratio: float) -> Flags:
    """2 % of the month's budget in 1 h, or 5 % in 6 h, and something in a twelfth of it."""
    budget = (1 - good_ratio) * month.jobs(PERIOD_SECONDS)
    pages = np.zeros(len(month.ends), dtype=np.bool_)
    for share, hours in ((0.02, 1), (0.05, 6)):
        pages |= (month.bad(hours * HOUR) > share * budget) & (month.bad(hours * HOUR / 12) > 0)
    return pages


RULES: Mapping[str, Rule] = {
    "ours": shipped,
    "our tickets": shipped_tickets,
    "textbook burn rates": textbook,
    "fixed share of the budget": fixed_share,
}


def simulated(
    per_week: float,
    good_ratio: float,
    chance: np.random.Generator,
    incident: float | None,
    pattern: str,
) -> Month:
    """A month after a month; ``incident`` is the second at which a bad day begins."""
    until = 2 * PERIOD_SECONDS + INCIDENT_SECONDS
    number = chance.poisson(per_week * until / WEEK_SECONDS)
    ends = np.sort(_ends(number, until, chance, pattern))
    bad_ratio = np.full(len(ends), 1 - good_ratio)
    if pattern == "pairs":
        bad_ratio /= 2
    if incident is not None:
        bad_ratio[(ends >= incident) & (ends < incident + INCIDENT_SECONDS)] = INCIDENT_BAD_RATIO
    fails = chance.random(len(ends)) < bad_ratio
    if pattern == "pairs" and len(ends) > 1:
        calm = np.flatnonzero(fails[:-1])
        if incident is not None:
            calm = calm[(ends[calm] < incident) | (ends[calm] >= incident + INCIDENT_SECONDS)]
        # The next job ends with it.
        fails[calm + 1] = True
        ends[calm + 1] = ends[calm]
    return Month(ends=ends, failures=ends[fails])


def _ends(number: int, until: float, chance: np.random.Generator, pattern: str) -> Floats:
    ends = chance.uniform(0, until, number)
    if pattern == "office hours":
        week, part = np.divmod(ends, WEEK_SECONDS)
        day, hours = np.divmod(part / WEEK_SECONDS * 5, 1)
        ends = week * WEEK_SECONDS + (day * 24 + 9 + hours * 8) * HOUR
    if pattern == "sweeps":
        num_swept = int(number * SWEEP_RATIO)
        begins = chance.uniform(0, until, max(1, num_swept // SWEEP))
        of_sweep = begins[chance.integers(0, len(begins), num_swept)]
        ends[:num_swept] = of_sweep + chance.uniform(0, SWEEP_SECONDS, num_swept)
    return ends


@dataclass
class Tally:
    """What a rule did over all months."""

    false_pages: int = 0
    delays: list[float] | None = None

    def cell(self, runs: int) -> str:
        """False pages a month, share of incidents caught, median hours until the page."""
        delays = self.delays or []
        median = f"{np.median(delays):.1f} h" if delays else "-"
        return f"{self.false_pages / runs:.2f} / {len(delays) / runs:.0%} / {median}"


def run(
    per_week: float, good_ratio: float, runs: int, chance: np.random.Generator, pattern: str
) -> list[str]:
    """The cells of one row, in the order of the rules."""
    tallies = {name: Tally(delays=[]) for name in RULES}
    for _ in range(runs):
        calm = simulated(per_week, good_ratio, chance, None, pattern)
        is_month = (calm.ends >= PERIOD_SECONDS) & (calm.ends < 2 * PERIOD_SECONDS)
        begin = PERIOD_SECONDS + chance.uniform(0, PERIOD_SECONDS)
        bad = simulated(per_week, good_ratio, chance, begin, pattern)
        is_incident = (bad.ends >= begin) & (bad.ends < begin + INCIDENT_SECONDS)
        for name, rule in RULES.items():
            tally = tallies[name]
            pages = calm.ends[rule(calm, good_ratio) & is_month]
            tally.false_pages += int(np.sum(np.diff(pages, prepend=-math.inf) > EPISODE_SECONDS))
            caught = bad.ends[rule(bad, good_ratio) & is_incident]
            if len(caught) and tally.delays is not None:
                tally.delays.append(float(caught[0] - begin) / HOUR)
    return [tally.cell(runs) for tally in tallies.values()]


def main() -> None:
    """Prints the table, row by row as it comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = np.random.default_rng(options.seed)
    print("False pages in 28 days / share of bad days paged within the day / median delay.\n")
    print(f"| failures and ends | jobs a week, objective | {' | '.join(RULES)} |")
    print(f"| --- | --- |{' --- |' * len(RULES)}")
    for pattern, per_week, good_ratio in itertools.product(PATTERNS, PER_WEEK, OBJECTIVES):
        cells = run(per_week, good_ratio, options.runs, chance, pattern)
        print(f"| {pattern} | {per_week}, {good_ratio:.0%} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
