"""Stretches of steps in which one unit, a rank or a node, kept all others waiting."""

import math
from dataclasses import dataclass

import numpy as np

from lockstep_reports.arrays import Flags, Integers, Matrix

# Standard deviation of the share of turning points of n independent values, times sqrt(n): their
# number has the variance (16 n - 29) / 90 (Kendall and Stuart).
_SIGMA_OF_TURNS = math.sqrt(16 / 90)


FALSE_ALARM_PROBABILITY = 1e-3
"""Upper bound for naming anybody in a whole healthy run."""
WINDOW_STEPS = 10
"""Steps of the window in most of which lateness must hold; a judge needs two windows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Steps ``first`` to ``last`` (columns, both included) in which ``unit`` was late.

    Attributes:
        threshold: margin in seconds over which a step was late.
        num_late: late steps among the ``num_known`` ones.
        num_last: steps among them in which no other unit came later.
        num_known: steps whose margin is known.
        chance: upper bound of the probability of such a stretch anywhere in a healthy run.
        is_steady: late in most of the steps; else now and then.
    """

    unit: int
    first: int
    last: int
    threshold: float
    num_late: int
    num_last: int
    num_known: int
    chance: float = 1.0
    is_steady: bool = True

    @property
    def columns(self) -> slice:
        """The steps as a slice."""
        return slice(self.first, self.last + 1)

    @classmethod
    def between(
        cls,
        unit: int,
        ends: tuple[int, int],
        margin: Matrix,
        threshold: float,
        *,
        is_steady: bool = True,
    ) -> "Stretch":
        """The steps from one end to the other, counted by a margin: seconds, [units, steps]."""
        first, last = ends
        values = margin[unit, first : last + 1]
        return cls(
            unit=unit,
            first=first,
            last=last,
            threshold=threshold,
            num_late=int(np.count_nonzero(values > threshold)),
            num_last=int(np.count_nonzero(values > 0)),
            num_known=int(np.count_nonzero(~np.isnan(values))),
            is_steady=is_steady,
        )


def find_runs(flags: Flags) -> tuple[Integers, Integers, Integers]:
    """Unit, first and last column of every run of true flags [units, steps], each [runs]."""
    edges = np.diff(np.pad(flags.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    units, firsts = np.nonzero(edges == 1)
    return units, firsts, np.nonzero(edges == -1)[1] - 1


def independence(margin: Matrix) -> float:
    """How many independent steps a step is worth: 1, and less where noise persists.

    Args:
        margin: [units, steps], NaN where unknown.

    Null hypothesis: the noise is independent from step to step; then a series turns in two steps
    of three. Assumed otherwise: first-order autoregression with correlation r, whose steps are
    worth (1 - r) / (1 + r) each; a random walk (r = 1) turns in every other step. An episode adds
    at most two turns, so unlike an autocorrelation the estimate is not moved by what is searched
    for.
    """
    change = np.diff(margin, axis=1)
    product = change[:, 1:] * change[:, :-1]
    num_known, num_turns = np.count_nonzero(product), np.count_nonzero(product < 0)
    num_known -= np.count_nonzero(np.isnan(product))
    if not num_known:
        return 1.0
    # One standard deviation is added, so that a short recording with independent noise is not
    # taken for a persistent one by chance.
    turn_share = num_turns / num_known + _SIGMA_OF_TURNS / math.sqrt(margin.shape[1])
    # For normal noise a series turns with probability arccos((r - 1) / 2) / pi.
    correlation = min(0.99, max(0.0, 1 + 2 * math.cos(math.pi * turn_share)))
    return (1 - correlation) / (1 + correlation)
