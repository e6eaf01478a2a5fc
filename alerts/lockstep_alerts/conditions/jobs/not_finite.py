"""A step of the last window had a loss or gradient norm that is NaN or infinite."""

from dataclasses import dataclass

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.joins import JOB_LABELS
from lockstep_alerts.conditions.synthetic import (
    JOB,
    Course,
    Stretch,
    Timing,
    growing,
    samples,
    steady,
)
from lockstep_alerts.reading.quantities import Window
from lockstep_catalogue import training
from lockstep_catalogue.promql import by, increase, select
from lockstep_catalogue.windows import ScrapeWindows


@dataclass(frozen=True, kw_only=True, slots=True)
class NotFinite(Condition):
    """Jobs with a loss or gradient norm that was NaN or infinite within ``window``.

    Attributes:
        window: how far back a step counts.
    """

    window: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """Steps of each job that were not finite within the window, over all ranks."""
        del windows  # the spec's reader has seen to it that four scrapes fit into the window
        steps = select(training.NONFINITE_STEPS)
        # increase() does not see the first increment of a new series: its whole value is new.
        born = f"({steps} > 0 unless {steps} offset {self.window})"
        grown = increase(training.NONFINITE_STEPS, self.window.text)
        return by("sum", f"{grown} > 0 or {born}", *JOB_LABELS)

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
                name,
                [samples(training.NONFINITE_STEPS, course, **node)],
                JOB if fires else None,
                at_seconds,
            )
            for name, course, at_seconds, fires in outlines
        ]
