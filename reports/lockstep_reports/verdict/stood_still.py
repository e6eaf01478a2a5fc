"""Whether a late rank's process was stopped from outside: it neither had a core nor wanted one.

A thread that sleeps or reads a file does neither as well, but in the phase in which it is told to.
A stop falls into each phase by the time that the phase takes.
"""

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import excess
from lockstep_reports.search.suspects import Suspect

# Share of the longer work that must be such time: less leaves a cause of equal size.
_MIN_BLOCKED_SHARE = 0.5
# And of what it cost, as of a phase that is named.
_MIN_SHARE_OF_COST = 0.25
# Of such time, which one phase could have lasted for where that phase slept: clocks differ by less.
_LASTED_SHARE = 0.9
# Counters of the kernel are read so often at most.
_READ_EVERY_SECONDS = 0.05
_MIN_CORRELATION = 0.4
_MIN_TYPICAL_SHARE = 0.75
_TINY_SECONDS = 1e-6


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
    phases = np.array([steps.phases[name][:, columns] for name in OWN_WORK_PHASES])
    longer = np.array([excess(phase, rows) for phase in phases])
    blocked = excess(steps.blocked[:, columns], rows)
    total, needed = float(np.nansum(blocked)), float(np.nansum(longer))
    if steps.run_queue is not None:
        # What other processes took is not the rank's own.
        needed -= max(0.0, float(np.nansum(excess(steps.run_queue[:, columns], rows))))
    least = max(_MIN_BLOCKED_SHARE * needed, _MIN_SHARE_OF_COST * float(suspect.cost.sum()))
    if not is_found_by_it and not total >= least > 0:
        return None
    usual = np.nansum(nan_stats.median(np.delete(phases, rows, axis=1), axis=1), axis=1)
    most = int(np.argmax(np.nansum(longer, axis=1)))
    elsewhere = 1.0 - usual[most] / usual.sum()
    is_spread = _fell_into_several(steps, suspect, columns)
    return total if is_spread or _is_spread(longer, most, blocked, elsewhere) else None


def _fell_into_several(steps: Steps, suspect: Suspect, columns: Integers) -> bool:
    """Whether no phase alone was long enough for such time.

    Other work on the host may lengthen any phase, but shortens none: a phase that sleeps lasts for
    all of the time, in the step or in those that were read together with it.
    """
    assert steps.blocked is not None
    rows, inside = list(suspect.rows), suspect.stretch.columns
    blocked = np.nan_to_num(steps.blocked[rows][:, columns])
    read_together = _READ_EVERY_SECONDS // nan_stats.median(steps.seconds[rows][:, inside])
    held = []
    for name in OWN_WORK_PHASES:
        phase = steps.phases[name][rows]
        longest = phase[:, columns] + read_together * nan_stats.median(phase[:, inside])
        held.append(blocked[longest >= _LASTED_SHARE * blocked].sum())
    return bool(max(held) < _LASTED_SHARE * blocked.sum())


def _is_spread(longer: Matrix, most: int, blocked: Matrix, elsewhere: float) -> bool:
    """Whether such time [steps] falls outside of one phase of ``longer`` [phases, steps] too.

    ``elsewhere`` is the share of a step that the other phases usually take. Other work on the host
    lengthens them as well, but not in the steps in which the one phase lacks blocked time.
    """
    others = np.nansum(np.delete(longer, most, axis=0), axis=0)
    if not np.nansum(others) >= elsewhere * np.nansum(longer) / 2:
        return False
    lacking = blocked - longer[most]
    is_known = np.isfinite(lacking)
    correlation = np.corrcoef(lacking[is_known], others[is_known])[0, 1]
    typical = nan_stats.median(others) / max(float(nan_stats.median(blocked)), _TINY_SECONDS)
    return bool(correlation >= _MIN_CORRELATION or typical >= _MIN_TYPICAL_SHARE * elsewhere)
