"""One rank has much more to do than the others, by what its loop reports: the workload."""

from dataclasses import dataclass
from typing import ClassVar, Self

from lockstep_alerts.conditions.condition import Case, Timing
from lockstep_alerts.conditions.joins import JOB_LABELS, load_excess
from lockstep_alerts.entry import Entry
from lockstep_alerts.synthetic import JOB, loads
from lockstep_catalogue.windows import ScrapeWindows


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
        return f"{load_excess(*JOB_LABELS)} > {self.above_ratio:g}"

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
                series=loads(ratio, timing.fires_by_seconds, load),
                at_seconds=timing.fires_by_seconds,
                fires=named if fires else None,
            )
            for name, ratio, load, fires in outlines
        ]
