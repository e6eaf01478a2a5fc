"""Something happened within a window that must not: a counter of the job has grown."""

from dataclasses import dataclass
from typing import ClassVar

from lockstep_alerts.conditions.condition import Case, Condition
from lockstep_alerts.conditions.joins import JOB_LABELS, NODE_LABELS
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
from lockstep_catalogue.labels import OUTCOME, RANK, RESTORE_OUTCOME
from lockstep_catalogue.metric import Label, Metric
from lockstep_catalogue.promql import Matcher, by, eq, increase, one_of, select
from lockstep_catalogue.windows import ScrapeWindows

_Counter = tuple[Metric, Matcher | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Counted(Condition):
    """Jobs of which a counter has grown within ``window``.

    Attributes:
        COUNTERS: that must not grow, each with the series of it that count.
        LABELS: of the alert.
        window: how far back growth counts.
    """

    COUNTERS: ClassVar[tuple[_Counter, ...]] = ()
    LABELS: ClassVar[tuple[Label, ...]] = JOB_LABELS
    window: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """How often it happened; each node counts the same event, so the nodes' highest count."""
        del windows  # the spec's reader has seen to it that four scrapes fit into the window
        grown = []
        for metric, matcher in self.COUNTERS:
            matchers = () if matcher is None else (matcher,)
            count = select(metric, *matchers)
            # increase() does not see the first increment of a new series: its whole value is new.
            born = f"({count} > 0 unless {count} offset {self.window})"
            grown.append(f"{increase(metric, self.window.text, *matchers)} > 0 or {born}")
        return by("max", " or ".join(grown), *self.LABELS)

    def cases(self, timing: Timing) -> list[Case]:
        """Each counter that grows or is born above zero, and one that stays where it was."""
        onset, by_deadline = timing.onset_seconds, timing.fires_by_seconds
        after = by_deadline - onset
        outlines: list[tuple[str, _Counter, Course, bool]] = []
        for counter in self.COUNTERS:
            grows = growing(Stretch(onset, 0), Stretch(1, 1), Stretch(after, 0))
            outlines.append((f"{counter[0].name} grows", counter, grows, True))
        first = self.COUNTERS[0]
        outlines += [
            ("it is born above zero", first, steady(1, after, onset), True),
            ("it stays at zero", first, steady(0, by_deadline), False),
        ]
        of_rank = {RANK.name: "2"} if RANK in self.LABELS else {}
        node = {"node": "n1"} if NODE_LABELS[-1] in self.LABELS else {}
        return [
            Case(
                name,
                [samples(metric, course, **_NODE, **of_rank, **_labels(matcher))],
                {**JOB, **of_rank, **node} if fires else None,
            )
            for name, (metric, matcher), course, fires in outlines
        ]


_NODE = {"instance": "n1:9400", **JOB, "node": "n1"}


def _labels(matcher: Matcher | None) -> dict[str, str]:
    return {} if matcher is None else {matcher.label.name: matcher.value.split("|")[0]}


class CheckpointInvalid(_Counted):
    """A checkpoint was read back otherwise than written, or a restore had to skip one."""

    COUNTERS = (
        (training.CHECKPOINTS, eq(OUTCOME, "invalid")),
        (training.RESTORES, one_of(RESTORE_OUTCOME, "fallback", "failed")),
    )


class CheckpointFailed(_Counted):
    """A checkpoint could not be written; the newest good one grows older."""

    COUNTERS = ((training.CHECKPOINTS, eq(OUTCOME, "failed")),)


class OutOfMemory(_Counted):
    """An allocation failed on a rank."""

    COUNTERS = ((training.OUT_OF_MEMORY_RANK, None),)
    LABELS = (*NODE_LABELS, RANK)
