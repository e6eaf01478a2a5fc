"""Whether a late rank's process was stopped from outside: it neither had a core nor wanted one.

A thread that sleeps or reads a file does neither as well, but in the phase in which it is told to.
A stop falls into each phase by the time that the phase takes.
"""

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.score import excess
from lockstep_reports.search.suspects import Suspect

# Share of the longer work that must be such time: less leaves a cause of equal size.
_MIN_BLOCKED_SHARE = 0.5
_MIN_CORRELATION = 0.4
_MIN_TYPICAL_SHARE = 0.75
_TINY_SECONDS = 1e-6


def stood_still_seconds(steps: Steps, suspect: Suspect) -> float | None:
    """How long a suspect's process stood still in its episode; None where that explains nothing."""
    if steps.blocked is None:
        return None
    rows, columns = list(suspect.rows), suspect.stretch.columns
    phases = np.array([steps.phases[name][:, columns] for name in OWN_WORK_PHASES])
    longer = np.array([excess(phase, rows) for phase in phases])
    blocked = excess(steps.blocked[:, columns], rows)
    total = float(np.nansum(blocked))
    if not total >= _MIN_BLOCKED_SHARE * np.nansum(longer) > 0:
        return None
    usual = np.nansum(nan_stats.median(np.delete(phases, rows, axis=1), axis=1), axis=1)
    most = int(np.argmax(np.nansum(longer, axis=1)))
    elsewhere = 1.0 - usual[most] / usual.sum()
    return total if _is_spread(longer, most, blocked, elsewhere) else None


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
