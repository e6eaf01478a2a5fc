"""A step of the last window had a loss or gradient norm that is NaN or infinite."""

from dataclasses import dataclass
from typing import ClassVar, Self

from lockstep_alerts.conditions.condition import DELIVERY_SECONDS, ONSET_SECONDS, Case
from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_alerts.entry import Entry
from lockstep_alerts.model import Duration
from lockstep_alerts.synthetic import JOB, SCRAPE_SECONDS, Stretch, growing, samples, steady
from lockstep_catalogue import training
from lockstep_catalogue.promql import by, increase, select


@dataclass(frozen=True, kw_only=True, slots=True)
class NotFinite:
    """Limits of the condition.

    Attributes:
        window: how far back a step counts.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("window",)
    window: Duration

    @classmethod
    def read(cls, entry: Entry) -> Self:
        """The limits of an entry."""
        return cls(window=entry.duration("window"))

    def expression(self) -> str:
        """Steps of each job that were not finite within the window, over all ranks."""
        steps = select(training.NONFINITE_STEPS)
        # increase() does not see the first increment of a new series: its whole value is new.
        born = f"({steps} > 0 unless {steps} offset {self.window})"
        grown = increase(training.NONFINITE_STEPS, self.window.text)
        return by("sum", f"{grown} > 0 or {born}", *JOB_LABELS)

    def evidence(self) -> str:
        """Nothing: the value says how many."""
        return ""

    def cases(self, deadline_seconds: int) -> list[Case]:
        """A counter that grows, one that is born above zero, and two that are old news."""
        by_deadline = ONSET_SECONDS + deadline_seconds - DELIVERY_SECONDS
        long_after = ONSET_SECONDS + self.window.seconds * 3 // 2
        after = by_deadline - ONSET_SECONDS
        unborn = f"_x{ONSET_SECONDS // SCRAPE_SECONDS}"
        grows = growing(Stretch(ONSET_SECONDS, 0), Stretch(after, 1))
        outlines: list[tuple[str, str, int, bool]] = [
            ("the counter grows", grows, by_deadline, True),
            ("it is born above zero", f"{unborn} {steady(1, after)}", by_deadline, True),
            ("it stays at zero", steady(0, by_deadline), by_deadline, False),
            ("it grew long ago", steady(3, long_after), long_after, False),
        ]
        node = {"instance": "n1:9400", **JOB, "node": "n1"}
        return [
            Case(
                name=name,
                series=[samples(training.NONFINITE_STEPS, values, **node)],
                at_seconds=at_seconds,
                fires=JOB if fires else None,
            )
            for name, values, at_seconds, fires in outlines
        ]
