"""Thinned recordings, of which most steps are quantiles by minute."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lockstep_reports import nan_stats
from lockstep_reports.arrays import Flags, Integers, Matrix
from lockstep_reports.wording import clock, duration, plural

SECONDS = 60
_MAX_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Thinned:
    """The steps that are not whole any more, by minutes in their order.

    Attributes:
        time: wall clock at which they were thinned: seconds since the epoch.
        findings: JSON of what the analysis of all steps found; empty where it cannot be read.
        intact: first and last step of each stretch that is whole.
        num_thinned: number of the other steps.
        begin: wall clock of each minute: seconds since the epoch [minutes].
        first: its first such step; ``last`` its last [minutes].
        medians: of the step and of its phases by name, median over the ranks of each rank's median:
            seconds [minutes].
    """

    time: float
    findings: bytes
    intact: tuple[tuple[int, int], ...]
    num_thinned: int
    begin: Matrix
    first: Integers
    last: Integers
    medians: Mapping[str, Matrix]

    def describe(self) -> str:
        """Which steps are whole, in a sentence."""
        spans = [f"{first:,} to {last:,}" for first, last in self.intact[:_MAX_NAMED]]
        more = len(self.intact) - len(spans)
        more_words = f" and {more:,} more stretches" if more else ""
        return (
            f"{plural(self.num_thinned, 'step')} are kept as quantiles by minute only, since"
            f" {clock(self.time)}; whole are steps {', '.join(spans)}{more_words}."
        )

    def describe_minutes(self, inside: Flags) -> tuple[str, ...]:
        """What some of the minutes say [minutes], in a sentence; none for none of them."""
        if not inside.any():
            return ()
        first, last = int(self.first[inside].min()), int(self.last[inside].max())
        median = duration(nan_stats.median_number(self.medians["step"][inside]))
        minutes = plural(int(np.count_nonzero(inside)), "minute")
        words = f"Of this window steps between {first:,} and {last:,} are kept as quantiles of"
        return (f"{words} {minutes} only: the median step took {median}.",)
