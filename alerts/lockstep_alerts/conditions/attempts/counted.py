"""Something happened within a window that must not: a counter of the job has grown."""

from typing import ClassVar

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.joins import JOB_LABELS, NODE_LABELS, grown
from lockstep_alerts.reading.quantities import Window
from lockstep_catalogue import training
from lockstep_catalogue.labels import OUTCOME, RANK, RESTORE_OUTCOME
from lockstep_catalogue.metric import Label, Metric
from lockstep_catalogue.promql import Matcher, by, eq, one_of
from lockstep_catalogue.windows import ScrapeWindows

_Counter = tuple[Metric, Matcher | None]


class _Counted(Condition):
    """Jobs of which a counter has grown within ``window``.

    Attributes:
        COUNTERS: that must not grow, each with the series of it that count.
        window: how far back growth counts.
    """

    COUNTERS: ClassVar[tuple[_Counter, ...]] = ()
    LABELS: ClassVar[tuple[Label, ...]] = JOB_LABELS
    window: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """How often it happened; each node counts the same event, so the nodes' highest count."""
        counted = []
        for metric, matcher in self.COUNTERS:
            matchers = () if matcher is None else (matcher,)
            # An outcome is a label of its own: a restore that failed is not one that fell back.
            labels = (*self.LABELS, *(() if matcher is None else (matcher.label,)))
            counted.append(grown(metric, self.window.text, *matchers, labels=labels))
        return by("max", " or ".join(counted), *self.LABELS)


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
