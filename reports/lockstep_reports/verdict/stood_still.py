"""Whether a late rank's process was stopped from outside: it neither had a core nor wanted one.

A thread that sleeps or reads a file does neither as well, but in the phase in which it is told to.
A stop falls into each phase by the time that the phase takes.
"""

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import excess
from lockstep_reports.search.strikes import steps_read_together
from lockstep_reports.search.suspects import Suspect

# Share of the longer work that must be such time: less leaves a cause of equal size.
_MIN_BLOCKED_SHARE = 0.5
# And of what it cost, as of a phase that is named.
_MIN_SHARE_OF_COST = 0.25
# Of such time in a step, by which a phase that slept was longer: its own work varies.
_HELD_SHARE = 0.75


def stood_still_seconds(
    steps: Steps, suspect: Suspect, *, is_found_by_it: bool = False
) -> float | None:
    """How long a suspect's process stood still in its late steps; None where one phase slept.

    None as well where that explains nothing, unless the suspect was found by that alone.
    """
    if steps.blocked is None:
        return None
    rows = list(suspect.rows)
    columns: Integers = suspect.stretch.first + np.flatnonzero(suspect.late)
    longer = [excess(steps.phases[name][:, columns], rows) for name in OWN_WORK_PHASES]
    total = float(np.nansum(excess(steps.blocked[:, columns], rows)))
    needed = float(np.nansum(longer))
    if steps.run_queue is not None:
        # What other processes took is not the rank's own.
        needed -= max(0.0, float(np.nansum(excess(steps.run_queue[:, columns], rows))))
    least = max(_MIN_BLOCKED_SHARE * needed, _MIN_SHARE_OF_COST * float(suspect.cost.sum()))
    if not is_found_by_it and not total >= least > 0:
        return None
    return total if _fell_into_several(steps, suspect, columns) else None


def _fell_into_several(steps: Steps, suspect: Suspect, columns: Integers) -> bool:
    """Whether no phase alone was long enough for such time.

    Other work on the host may lengthen any phase, but shortens none: a phase that sleeps is longer
    by all of the time, in the step or in those that were read together with it.
    """
    assert steps.blocked is not None
    rows, inside = list(suspect.rows), suspect.stretch.columns
    # A device that is waited for asleep is usual, and no stop.
    usual_blocked = nan_stats.lowest(nan_stats.quantile(steps.blocked, 0.25, axis=1), axis=0)
    blocked = np.nan_to_num(np.maximum(steps.blocked[rows][:, columns] - usual_blocked, 0.0))
    if not blocked.any():
        return False
    read_together = steps_read_together(steps.seconds[rows][:, inside])
    usual_shares, held = [], []
    for name in OWN_WORK_PHASES:
        usual = nan_stats.lowest(nan_stats.quantile(steps.phases[name], 0.25, axis=1), axis=0)
        longer = np.maximum(steps.phases[name][rows] - usual, 0.0)
        steady = nan_stats.quantile(longer[:, inside], 0.25)
        most = longer[:, columns] + read_together * steady
        held.append(blocked[most >= _HELD_SHARE * blocked].sum() / blocked.sum())
        usual_shares.append(float(usual))
    # Nearer to the phases' usual shares than to one phase alone.
    nearer = (1 + np.array(usual_shares) / sum(usual_shares)) / 2
    return bool((np.array(held) < nearer).all())
