"""Conditions of objectives: burnt budgets of events and GPU-seconds, worse slices."""

import math

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.joins import JOB_LABELS, select_jobs_without_pages
from lockstep_alerts.objectives.objective import BurnLimit, Limit, Objective
from lockstep_alerts.rules.slices import SLICE_SECONDS
from lockstep_catalogue import recorded
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.ledger import JOB_CLASS, SLO, SLO_COUNTS_SECONDS, SLO_WINDOWS, WINDOW
from lockstep_catalogue.promql import Matcher, by, eq, names, select
from lockstep_catalogue.windows import ScrapeWindows

_CLASS_LABELS = (CLUSTER, JOB_CLASS)
_CLASS_JOIN = f"on ({names(*_CLASS_LABELS)})"


def _expression(limit: Limit, objective: Objective, job_class: str, bad_ratio: float) -> str:
    """PromQL of a limit; its value is the number of bad events in the window."""
    # The name of an objective on a counter is the spec's own.
    here = (Matcher(SLO, "=", objective.slo), eq(JOB_CLASS, job_class))
    # Of the events that ended in the window: jobs end by day, and sweeps all at once.
    total = select(recorded.TOTAL_EVENTS, *here, eq(WINDOW, limit.window))
    bad = select(recorded.BAD_EVENTS, *here, eq(WINDOW, limit.window))
    mean = f"{bad_ratio:.6g} * {total}"
    deviation = f"sqrt({limit.cluster_size * bad_ratio:.6g} * {total})"
    by_chance = f"({mean} + {limit.sigmas:g} * {deviation} + {limit.spares:g})"
    # ``group_left`` keeps the labels of the left side, of which one is the window.
    lines = [f"{bad} > {_CLASS_JOIN} group_left () {by_chance}"]
    if limit.burn_rate is not None:
        burnt = f"{limit.burn_rate * bad_ratio:.6g} * {total}"
        lines.append(f"and {_CLASS_JOIN} ({bad} > {_CLASS_JOIN} ({burnt}))")
    if limit.recent is not None:
        recent = select(recorded.BAD_EVENTS, *here, eq(WINDOW, limit.recent))
        lines.append(f"and {_CLASS_JOIN} ({recent} > 0)")
    return "\n".join(lines)


class Burn(Condition):
    """The budget of an objective is spent too fast by one of these limits."""

    DETECTED_AFTER = math.ceil(SLO_COUNTS_SECONDS)

    objective: Objective
    limits: tuple[Limit, ...]

    def expression(self, windows: ScrapeWindows) -> str:
        """Bad events in the window that a label names."""
        return "\nor\n".join(
            _expression(limit, self.objective, job_class, 1 - good_ratio)
            for job_class, good_ratio in self.objective.goals.items()
            for limit in self.limits
        )


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
            total = f"({select(recorded.TOTAL_EVENTS, *here)} > {least:.6g})"
            return (
                f"{select(recorded.BAD_EVENTS, *here)} / {total} > {limit.bad_share(bad_ratio):.6g}"
            )

        least_seconds = self.objective.min_gpus * SLO_WINDOWS[limit.window]
        long, short = share(limit.window, least_seconds), share(limit.recent, 0)
        return f"({long}\nand {_CLASS_JOIN} {short})"


class SliceWorse(Condition):
    """The last five minutes of a job are worse than its best hour by more than the limit."""

    DETECTED_AFTER = SLICE_SECONDS

    objective: Objective
    min_ratio: float

    def expression(self, windows: ScrapeWindows) -> str:
        """How good the job is against its best hour."""
        # Without the objective's label: it is the job's alert, and no other job's.
        ratio = by("min", select(recorded.SLICE_RATIO, eq(SLO, self.objective.slo)), *JOB_LABELS)
        return f"{ratio} < {self.min_ratio:g} unless {select_jobs_without_pages()}"


# Below so many bad events a budget of a small cluster is spent by chance alone.
_LEAST_BAD = 2
_LEAST_MINUTES = 2 * 24 * 60
"""Of slices, which are evaluated once a minute, out of their period."""


class BudgetSpent(Condition):
    """The budget of any objective is spent."""

    DETECTED_AFTER = math.ceil(SLO_COUNTS_SECONDS)

    objectives: tuple[Objective, ...]

    def expression(self, windows: ScrapeWindows) -> str:
        """Times that the budget is spent, of the cluster and of classes that are promised of."""
        key = (CLUSTER, JOB_CLASS, SLO)
        spent = by("max", f"{select(recorded.PERIOD_BURN_RATE)} > 1", *key)
        several = f"and on ({names(*key)}) {select(recorded.BAD_EVENTS)} >= {_LEAST_BAD}"
        # Slices of a Prometheus that has seen an afternoon are no week.
        seen = f"count_over_time({select(recorded.SLICES_TOTAL)}[{recorded.SLICE_PERIOD}])"
        young = f"unless on ({names(CLUSTER, SLO)}) {seen} < {_LEAST_MINUTES}"
        return (
            f"{spent}\n{several}\n{young}\nand on ({names(JOB_CLASS, SLO)}) {select(recorded.GOAL)}"
        )
