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
# Of such time in a step, which a phase that slept lasted at least: clocks differ by less. And of
# all such time, which one phase may have lasted for where it fell into several.
_LASTED_SHARE, _MAX_SHARE_OF_ONE_PHASE = 0.9, 0.9


def stood_still_seconds(steps: Steps, suspect: Suspect) -> float | None:
    """How long a suspect's process stood still in its episode; None where that explains nothing."""
    if steps.blocked is None:
        return None
    rows, columns = list(suspect.rows), suspect.stretch.columns
    phases = np.array([steps.phases[name][:, columns] for name in OWN_WORK_PHASES])
    longer = np.array([np.nansum(excess(phase, rows)) for phase in phases])
    blocked = float(np.nansum(excess(steps.blocked[:, columns], rows)))
    waits = np.zeros_like(steps.blocked) if steps.run_queue is None else steps.run_queue
    # What other processes took is not the rank's.
    waited = max(0.0, float(np.nansum(excess(waits[:, columns], rows))))
    unexplained = max(longer.sum() - waited, float(suspect.cost.sum()))
    if not blocked >= _MIN_BLOCKED_SHARE * unexplained > 0:
        return None
    usual = np.nansum(nan_stats.median(np.delete(phases, rows, axis=1), axis=1), axis=1)
    # Nearer to the phases' usual shares than to one phase alone.
    most = int(np.argmax(longer))
    is_spread = 0 < longer[most] <= (1 + usual[most] / usual.sum()) / 2 * longer.sum()
    lasted = _lasted_shares(phases[:, rows], steps.blocked[rows, columns])
    # A phase that is usually much shorter, and lasts for all of it, slept itself.
    usual_seconds, a_stop_seconds = usual / phases.shape[2], blocked / max(1, suspect.late.sum())
    lasts = lasted > _MAX_SHARE_OF_ONE_PHASE
    if (lasts & (usual_seconds < a_stop_seconds / 4)).any():
        return None
    is_one_phase = lasts.any() or longer[most] > _MAX_SHARE_OF_ONE_PHASE * longer.sum()
    return blocked if is_spread or not is_one_phase else None


def _lasted_shares(phases: Matrix, blocked: Matrix) -> Matrix:
    """Share of the time without a core, by phase, that the phase could have lasted [phases].

    Other processes may lengthen any phase, so that no longer one says where the time was spent; a
    phase that slept lasted for all of it in each step.

    Args:
        phases: seconds, [phases, ranks, steps].
        blocked: seconds without a core or a wait for one, [ranks, steps].
    """
    lasts = phases >= _LASTED_SHARE * blocked
    shares: Matrix = np.nansum(np.where(lasts, blocked, 0.0), axis=(1, 2)) / np.nansum(blocked)
    return shares
