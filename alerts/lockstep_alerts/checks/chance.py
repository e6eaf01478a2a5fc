"""The rate at which an alert on events fires by chance: simulated months that meet the objective.

Bad events are a Poisson process that uses up the budget exactly, so that every alert is false. The
seed is fixed, so that the same spec prints the same figures. Alerts within six hours are one.
"""

import random
from collections.abc import Sequence

from lockstep_alerts.objectives.limits import Limit
from lockstep_catalogue.ledger import SLO_WINDOWS
from lockstep_catalogue.recorded import PERIOD

WEEKS_OF_PERIOD = 4
_SEED = 20_260_101
_DELAY_SECONDS = 30.0  # from an end of a job to the count and the evaluation after it
_EPISODE_SECONDS = 6 * 3600.0
# So many bad events in all give a rate of one in a month to a tenth, in half a second.
_MAX_EVENTS, _MAX_MONTHS = 60_000, 600


def false_alerts(
    limits: Sequence[Limit], good_ratio: float, events_per_week: float
) -> tuple[float, int]:
    """Alerts in 28 days at the objective, and over how many simulated months they are counted."""
    period_seconds = SLO_WINDOWS[PERIOD]
    total = WEEKS_OF_PERIOD * events_per_week
    bad_per_month = (1 - good_ratio) * total
    if bad_per_month <= 0:
        return 0.0, 0
    months = max(20, min(_MAX_MONTHS, int(_MAX_EVENTS / bad_per_month)))
    chance = random.Random(_SEED)
    times: list[float] = []
    now, until = 0.0, (months + 1) * period_seconds
    while (now := now + chance.expovariate(bad_per_month / period_seconds)) < until:
        times.append(now)
    least = [
        (SLO_WINDOWS[each.window], each.least_bad(1 - good_ratio, each.events(total)))
        for each in limits
    ]
    num_alerts, last = 0, -_EPISODE_SECONDS
    begins = [0] * len(least)
    for index, moment in enumerate(times):
        for position, (seconds, least_bad) in enumerate(least):
            while times[begins[position]] <= moment + _DELAY_SECONDS - seconds:
                begins[position] += 1
            is_too_many = index + 1 - begins[position] >= least_bad
            # The first month only fills the windows.
            if is_too_many and moment >= period_seconds:
                num_alerts += moment - last > _EPISODE_SECONDS
                last = moment
                break
    return num_alerts / months, months
