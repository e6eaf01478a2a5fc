"""GPU-seconds that are lost too fast: the budget of goodput burns, over a long and a short window.

The denominator grows all the time that anything runs, so that burn rates work as they do for
requests. What differs: objectives are near 90 %, where the usual rates cannot be reached, and one
idle debugging allocation must wake nobody.
"""

import math

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.objectives.limits import BurnLimit
from lockstep_alerts.objectives.objective import Objective
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import JOB_CLASS, SLO, SLO_COUNTS_SECONDS, SLO_WINDOWS, WINDOW
from lockstep_catalogue.promql import eq, names, select
from lockstep_catalogue.recorded import BAD_EVENTS, TOTAL_EVENTS
from lockstep_catalogue.windows import ScrapeWindows

_CLASS_JOIN = f"on ({names(CLUSTER, JOB_CLASS)})"
_REPORT_SECONDS = 60
"""Time between two reports of goodput by a node."""


class GpuSecondBurn(Condition):
    """The budget of GPU-seconds burns too fast by one of these limits."""

    DETECTED_AFTER = math.ceil(_REPORT_SECONDS + SLO_COUNTS_SECONDS)

    objective: Objective
    limits: tuple[BurnLimit, ...]

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of bad GPU-seconds in the window that a label names."""
        return "\nor\n".join(
            self._select_limit(limit, job_class, 1 - good_ratio)
            for job_class, good_ratio in self.objective.goals.items()
            for limit in self.limits
        )

    def _select_limit(self, limit: BurnLimit, job_class: str, bad_ratio: float) -> str:
        def share(window: str, least: float) -> str:
            here = (eq(SLO, self.objective.slo), eq(JOB_CLASS, job_class), eq(WINDOW, window))
            total = f"({select(TOTAL_EVENTS, *here)} > {least:.6g})"
            return f"{select(BAD_EVENTS, *here)} / {total} > {limit.bad_share(bad_ratio):.6g}"

        least_seconds = self.objective.min_gpus * SLO_WINDOWS[limit.window]
        long, short = share(limit.window, least_seconds), share(limit.recent, 0)
        return f"({long}\nand {_CLASS_JOIN} {short})"
