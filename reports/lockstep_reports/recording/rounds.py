"""Steps of ranks that share parameters now and then, instead of gradients in every step.

Where all meet in rounds, a round is what a step is elsewhere: only at its end somebody waits. Where
each exchanges parameters independently of the others, nobody waits for a rank.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.wording import plural

_SUMS = (
    "seconds",
    "tokens",
    "sequence_squares",
    "host_bound",
    "run_queue",
    "blocked",
    "stopped",
)
_HIGHEST = ("first_arrival", "last_arrival", "not_finite", "hung", "by_device")


def as_shared(steps: Steps) -> Steps:
    """The steps with a column a round, or marked as independent; as they are in all other jobs."""
    if any(member.independent_rounds for member in steps.members):
        return replace(steps, is_independent=True)
    num_in_sync = np.count_nonzero(~np.isnan(steps.sync), axis=0)
    ends = np.flatnonzero(num_in_sync > 1)
    has_rounds = any(member.sync_rounds for member in steps.members)
    if not has_rounds or len(ends) in {0, len(steps.numbers)}:
        return steps
    return _sum_rounds(steps, ends)


def _sum_rounds(steps: Steps, ends: Integers) -> Steps:
    """Sums over the steps of each round; steps after the last round are left out."""
    starts = np.concatenate([[0], ends[:-1] + 1])
    covered = slice(0, int(ends[-1]) + 1)

    def reduced(values: Matrix | None, reduce: np.ufunc) -> Any:
        return None if values is None else reduce.reduceat(values[:, covered], starts, axis=1)

    changed: dict[str, Any] = {name: reduced(getattr(steps, name), np.add) for name in _SUMS}
    # Of a round only its last step has arrivals; fmax passes over what is unknown.
    changed |= {name: reduced(getattr(steps, name), np.fmax) for name in _HIGHEST}
    round_steps = int(np.median(ends - starts + 1))
    note = (
        f"All ranks meet in rounds, every {plural(round_steps, 'step')}: a step of this report is "
        "one round, under the number of its last step."
    )
    return replace(
        steps,
        **changed,
        numbers=steps.numbers[ends],
        phases={name: reduced(values, np.add) for name, values in steps.phases.items()},
        start=steps.start[:, starts],
        loss=steps.loss[:, ends],
        notes=(*steps.notes, note),
        round_steps=round_steps,
    )
