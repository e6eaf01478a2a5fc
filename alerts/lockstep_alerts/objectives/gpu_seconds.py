"""GPU-seconds that are lost too fast: the budget of goodput burns, over a long and a short window.

The denominator grows all the time that anything runs, so that burn rates work as they do for
requests. What differs: objectives are near 90 %, where the usual rates cannot be reached, and one
idle debugging allocation must wake nobody.
"""

import math
from dataclasses import dataclass

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.synthetic import Samples, Timing
from lockstep_alerts.objectives.counts import counts, labels_of
from lockstep_alerts.objectives.limits import BurnLimit
from lockstep_alerts.objectives.objective import Objective
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import JOB_CLASS, SLO, SLO_COUNTS_SECONDS, SLO_WINDOWS, WINDOW
from lockstep_catalogue.promql import eq, names, select
from lockstep_catalogue.recorded import BAD_EVENTS, PERIOD, TOTAL_EVENTS
from lockstep_catalogue.windows import ScrapeWindows

_ON_CLASS = f"on ({names(CLUSTER, JOB_CLASS)})"
_REPORT_SECONDS = 60
"""Time between two reports of goodput by a node."""
_MARGIN = 0.01  # of all GPU-seconds, above and below a limit, in the cases


@dataclass(frozen=True, kw_only=True, slots=True)
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
        return f"({long}\nand {_ON_CLASS} {short})"

    def cases(self, timing: Timing) -> list[Case]:
        first, bad_ratio = self.limits[0], self.objective.bad_ratio
        gpus = 2 * self.objective.min_gpus
        above = {each: each.bad_share(bad_ratio) + _MARGIN for each in self.limits}
        high, low = above[first], above[first] - 2 * _MARGIN

        def job(limit: BurnLimit, share: float, recent: float, num_gpus: float) -> list[Samples]:
            return self._series(timing, limit, share, recent, num_gpus)

        return [
            *(
                Case(
                    f"{each.window} above its limit",
                    job(each, share, share, gpus),
                    labels_of(self.objective.slo, each.window),
                )
                for each, share in above.items()
            ),
            Case("below the limit", job(first, low, low, gpus)),
            Case("the last minutes are good", job(first, high, 0, gpus)),
            Case("too few GPUs", job(first, high, high, self.objective.min_gpus / 2)),
            Case("nothing ran", job(first, 0, 0, 0)),
        ]

    def _series(
        self, timing: Timing, limit: BurnLimit, share: float, recent: float, num_gpus: float
    ) -> list[Samples]:
        total = round(num_gpus * SLO_WINDOWS[PERIOD])
        bad = {
            window: round(
                num_gpus * seconds * (recent if seconds <= SLO_WINDOWS[limit.recent] else share)
            )
            for window, seconds in SLO_WINDOWS.items()
            if seconds <= SLO_WINDOWS[limit.window]
        }
        return counts(timing, self.objective.slo, total, bad)
