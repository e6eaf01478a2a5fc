"""The module of the catalogue with what slos.yaml declares for every program."""

import math

from lockstep_alerts.spec import Spec
from lockstep_catalogue.ledger import SLOS

_LIMITS = '''\
"""Limits of alerts/slos.yaml by which other programs judge; written by ``make generate``."""

import math

from lockstep_catalogue.windows import ScrapeWindows

DECLARED = ScrapeWindows(scrape_seconds={seconds})
"""What follows from the scrape interval."""
QUEUE_WAIT_TARGETS = (
{queue_wait})
"""Most GPUs and the seconds that a job of this size may wait; each is an edge of the histogram."""
PREEMPTION_GRACE_SECONDS = {grace}
"""What a preemption may cost beyond an interval of checkpoints."""
MIN_WAIT_RATIO = {min_wait:g}
"""Share of the step that some rank of a healthy group waits at least."""
MAX_OTHER_RATIO = {max_other:g}
"""Share of the step in no marked phase from which on it may hide a slow rank."""
SLO_GOALS = {{
{goals}}}
"""Share of good events that is promised over 28 days, by objective that the ledger counts."""
'''


def render(spec: Spec) -> str:
    """The text of the module."""
    limits = spec.limits
    waits = "".join(
        f"    ({'math.inf' if math.isinf(each.up_to_gpus) else each.up_to_gpus}, "
        f"{float(each.wait.seconds)}),\n"
        for each in limits.queue_wait
    )
    goals = "".join(f'    "{x.slo}": {x.good_ratio:g},\n' for x in spec.objectives if x.slo in SLOS)
    return _LIMITS.format(
        seconds=spec.windows.scrape_seconds,
        queue_wait=waits,
        grace=float(limits.preemption_grace.seconds),
        min_wait=limits.min_wait_ratio,
        max_other=limits.max_other_ratio,
        goals=goals,
    )
