"""A step of the last window had a loss or gradient norm that is NaN or infinite."""

from dataclasses import dataclass
from typing import ClassVar, Self

from lockstep_alerts.conditions.condition import Case, Timing
from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_alerts.entry import Entry
from lockstep_alerts.model import Duration
from lockstep_alerts.synthetic import JOB, Course, Stretch, growing, samples, steady
from lockstep_catalogue import training
from lockstep_catalogue.promql import by, increase, select
from lockstep_catalogue.windows import ScrapeWindows


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
        return cls(window=entry.window("window"))

    def expression(self, windows: ScrapeWindows) -> str:
        """Steps of each job that were not finite within the window, over all ranks."""
        del windows  # the spec's reader has seen to it that four scrapes fit into the window
        steps = select(training.NONFINITE_STEPS)
        # increase() does not see the first increment of a new series: its whole value is new.
        born = f"({steps} > 0 unless {steps} offset {self.window})"
        grown = increase(training.NONFINITE_STEPS, self.window.text)
        return by("sum", f"{grown} > 0 or {born}", *JOB_LABELS)

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """None: the first sample that has grown is enough."""
        del windows
        return 0

    def evidence(self) -> str:
        """Nothing: the value says how many."""
        return ""

    def cases(self, timing: Timing) -> list[Case]:
        """A counter that grows, one that is born above zero, and two that are old news."""
        onset, by_deadline = timing.onset_seconds, timing.fires_by_seconds
        after = by_deadline - onset
        long_after = onset + self.window.seconds * 3 // 2
        grows = growing(Stretch(onset, 0), Stretch(after, 1))
        outlines: list[tuple[str, Course, int, bool]] = [
            ("the counter grows", grows, by_deadline, True),
            ("it is born above zero", steady(1, after, onset), by_deadline, True),
            ("it stays at zero", steady(0, by_deadline), by_deadline, False),
            ("it grew long ago", steady(3, long_after), long_after, False),
        ]
        node = {"instance": "n1:9400", **JOB, "node": "n1"}
        return [
            Case(
                name=name,
                series=[samples(training.NONFINITE_STEPS, course, **node)],
                at_seconds=at_seconds,
                fires=JOB if fires else None,
            )
            for name, course, at_seconds, fires in outlines
        ]
