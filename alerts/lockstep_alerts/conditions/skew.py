"""One rank has much more to do than the others, by what its loop reports: the workload."""

from dataclasses import dataclass
from typing import ClassVar, Self

from lockstep_alerts.conditions.condition import Case, Timing
from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_alerts.entry import Entry
from lockstep_alerts.synthetic import JOB, Samples, samples, steady
from lockstep_catalogue import job_ranks
from lockstep_catalogue.promql import by, median_by, names, one_of, select
from lockstep_catalogue.windows import ScrapeWindows

_LOAD = (*JOB_LABELS, job_ranks.LOAD)
# The longest sequence alone makes no work: its square does, and it is in the squares.
_COMPARED = ("samples", "tokens", "squares")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSkew:
    """Limits of the condition.

    Attributes:
        above_ratio: load of the heaviest rank over the median, less one.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("above_ratio",)
    above_ratio: float

    @classmethod
    def read(cls, entry: Entry) -> Self:
        """The limits of an entry."""
        return cls(above_ratio=entry.number("above_ratio", 0, 100))

    def expression(self, windows: ScrapeWindows) -> str:
        """By how much the heaviest rank of each job is above the median, by kind of load."""
        del windows  # the agent takes the mean over 64 steps
        compared = one_of(job_ranks.LOAD, *_COMPARED)
        heaviest = by("max", select(job_ranks.HEAVIEST_LOAD, compared), *_LOAD)
        median = median_by(select(job_ranks.MEDIAN_LOAD, compared), *_LOAD)
        excess = f"{heaviest} / on ({names(*_LOAD)}) ({median} > 0) - 1"
        return f"{excess} > {self.above_ratio:g}"

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """None beyond the agent's mean over 64 steps, which ``for`` outlasts."""
        del windows
        return 10

    def evidence(self) -> str:
        """Nothing: no rank is at fault."""
        return ""

    def cases(self, timing: Timing) -> list[Case]:
        """A rank with twice the tokens, one with a little more, and a long sequence alone."""
        named = {**JOB, "load": "tokens"}
        above, below = 1.1 * (1 + self.above_ratio), 1 + 0.5 * self.above_ratio
        outlines: list[tuple[str, float, str, bool]] = [
            ("one rank has more tokens", above, "tokens", True),
            ("by less than that", below, "tokens", False),
            ("one sequence is long", above, "longest_sequence", False),
        ]
        return [
            Case(
                name=name,
                series=_loads(timing, ratio, load),
                at_seconds=timing.fires_by_seconds,
                fires=named if fires else None,
            )
            for name, ratio, load, fires in outlines
        ]


def _loads(timing: Timing, ratio: float, load: str) -> list[Samples]:
    node = {"instance": "n1:9400", **JOB, "node": "n1", "load": load}
    heaviest = steady(1000 * ratio, timing.fires_by_seconds)
    median = steady(1000, timing.fires_by_seconds)
    return [
        samples(job_ranks.HEAVIEST_LOAD, heaviest, rank="2", **node),
        samples(job_ranks.MEDIAN_LOAD, median, **node),
    ]
