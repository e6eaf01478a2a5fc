"""Conditions on attempts of jobs: checkpoints, memory, starts, replicas, data."""

from typing import Annotated, ClassVar

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.jobs import restarts
from lockstep_alerts.conditions.joins import (
    JOB_JOIN,
    JOB_LABELS,
    NODE_JOIN,
    NODE_LABELS,
    RUNNING,
    grown,
    load_excess,
)
from lockstep_alerts.reading.entry import Ratio, Window, number, whole_number
from lockstep_catalogue import host, training
from lockstep_catalogue.labels import (
    ANOMALY,
    MEMORY_EVENT,
    NODE,
    OUTCOME,
    RANK,
    RESTORE_OUTCOME,
    STATE,
)
from lockstep_catalogue.metric import Label, Metric
from lockstep_catalogue.promql import Matcher, by, eq, increase, names, one_of, select
from lockstep_catalogue.windows import ScrapeWindows

_FAILED = ("failed", "gone")


class FailedOnStart(Condition):
    """Ranks of the newest attempt have failed, and none of its ranks has completed a step."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Number of failed ranks of each such job."""
        failed = by("sum", select(training.RANKS, one_of(STATE, *_FAILED)), *JOB_LABELS)
        stepped = by("max", select(training.STEP), *JOB_LABELS)
        return f"{failed} > 0 unless {JOB_JOIN} ({stepped} > 0)"


class CrashLoop(Condition):
    """Jobs that were restarted ``least_restarts`` times or more within ``window``."""

    window: Window
    least_restarts: Annotated[int, whole_number(0, 1000)]

    def expression(self, windows: ScrapeWindows) -> str:
        """Restarts of each job within the window."""
        return f"{restarts(self.window.text)} >= {self.least_restarts}"


class TopologyWrong(Condition):
    """Ranks of one attempt do not agree on the size of the job, or are more or fewer than it."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Ranks of each job that does not fit together, by one of three signs."""
        attempt = select(training.ATTEMPT_NUMBER)
        # A node that an earlier attempt has left reports its pages for a while.
        newest = (
            f"{NODE_JOIN} ({attempt} == {JOB_JOIN} group_left () {by('max', attempt, *JOB_LABELS)})"
        )
        sizes = f"({select(training.WORLD_RANKS)} and {newest})"
        most = by("max", sizes, *JOB_LABELS)

        def ranks(*states: str) -> str:
            matchers = (one_of(STATE, *states),) if states else ()
            return by("sum", f"({select(training.RANKS, *matchers)} and {newest})", *JOB_LABELS)

        disagree = f"{most} > {JOB_JOIN} {by('min', sizes, *JOB_LABELS)}"
        too_many = f"{ranks(*RUNNING)} > {JOB_JOIN} {most}"
        lately = f"max_over_time({select(training.RANKS)}[{windows.long}])"
        away = (
            f"{by('group', lately, *JOB_LABELS, NODE)} unless {NODE_JOIN} {select(training.RANKS)}"
        )
        few = f"{ranks()} < {JOB_JOIN} {most} and {JOB_JOIN} {ranks('init')} > 0"
        # An agent that is away for a moment takes the ranks of its node with it.
        too_few = f"{few} unless {JOB_JOIN} ({away})"
        return f"({disagree})\nor\n({too_many})\nor\n({too_few})"


_BRIEF_SECONDS = 60


class NotFinite(Condition):
    """Jobs of which a share of the steps is not finite, seen at several scrapes.

    Attributes:
        above_ratio: steps that are not finite, of a node's steps.
    """

    window: Window
    above_ratio: Ratio = 0.005
    least_scrapes: Annotated[int, whole_number(0, 20)] = 5

    def expression(self, windows: ScrapeWindows) -> str:
        """Steps of each job that were not finite within the window, over all ranks."""
        scrapes_seconds = (self.least_scrapes + 3) * windows.scrape_seconds
        brief = windows.cover(max(_BRIEF_SECONDS, scrapes_seconds))
        return by(
            "sum",
            "\nor\n".join(
                self._lasting(window) for window in (brief, windows.cover(self.window.seconds))
            ),
            *JOB_LABELS,
        )

    def _lasting(self, window: str) -> str:
        counted = select(training.NONFINITE_STEPS)
        seen = f"changes({counted}[{window}]) >= {self.least_scrapes}"
        lost = by("sum", increase(training.NONFINITE_STEPS, window), *NODE_LABELS)
        steps = by("sum", increase(training.STEPS, window), *NODE_LABELS)
        often = by("group", seen, *NODE_LABELS)
        return f"{lost} > {NODE_JOIN} ({self.above_ratio:g} * {steps}) and {NODE_JOIN} {often}"

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """As many scrapes as have to see it, one of which may see two steps."""
        return self.least_scrapes * windows.scrape_seconds


_Counter = tuple[Metric, Matcher | None, Metric | None]
"""A counter, which series of it, and the counter of the same events that is born at 0."""


class _Counted(Condition):
    """Jobs of which one of ``COUNTERS``, those series of it that count, has grown in ``window``."""

    COUNTERS: ClassVar[tuple[_Counter, ...]] = ()
    LABELS: ClassVar[tuple[Label, ...]] = JOB_LABELS
    window: Window

    def expression(self, windows: ScrapeWindows) -> str:
        """How often it happened; each node counts the same event, so the nodes' highest count."""
        counted = []
        for metric, matcher, total in self.COUNTERS:
            matchers = () if matcher is None else (matcher,)
            # An outcome is a label of its own: a restore that failed is not one that fell back.
            labels = (*self.LABELS, *(() if matcher is None else (matcher.label,)))
            counted.append(grown(metric, self.window.text, *matchers, labels=labels, total=total))
        return by("max", " or ".join(counted), *self.LABELS)


class CheckpointInvalid(_Counted):
    """A checkpoint was read back otherwise than written, or a restore had to skip one."""

    COUNTERS = (
        (training.CHECKPOINTS, eq(OUTCOME, "invalid"), None),
        (training.RESTORES, one_of(RESTORE_OUTCOME, "fallback", "failed"), None),
    )


class CheckpointFailed(_Counted):
    """A checkpoint could not be written; the newest good one grows older."""

    COUNTERS = ((training.CHECKPOINTS, eq(OUTCOME, "failed"), None),)


class OutOfMemory(_Counted):
    """An allocation failed on a rank, or the kernel killed one."""

    COUNTERS = (
        (training.OUT_OF_MEMORY_RANK, None, training.OUT_OF_MEMORY),
        (host.JOB_MEMORY_EVENTS, eq(MEMORY_EVENT, "oom_kill"), None),
    )
    LABELS = (*NODE_LABELS, RANK)


class LossAnomaly(Condition):
    """A rank's loss is anomalous now, or an anomaly began within the last window of scrapes."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Number of anomalous ranks by job and kind; of a spike that has passed its beginnings."""
        lasting = f"{by('sum', select(training.ANOMALOUS), *JOB_LABELS, ANOMALY)} > 0"
        # A spike of a step or two is over before the next scrape.
        begun = increase(training.ANOMALIES, windows.cover(60))
        return f"{lasting}\nor\n{by('sum', begun, *JOB_LABELS, ANOMALY)} > 0"


_PART = (*JOB_LABELS, training.MODEL_PART)


class ReplicasDiffer(Condition):
    """Data-parallel replicas whose fingerprints differ; they have to be equal to the bit."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Jobs with ranks that differ on one node, or with nodes that differ at one step."""
        step = select(training.FINGERPRINT_STEP)
        # Nodes are scraped at different moments: only those at the newest step are compared.
        newest = f"{step} == on ({names(*_PART)}) group_left () {by('max', step, *_PART)}"
        same_step = f"({select(training.FINGERPRINT)} and on ({names(*_PART, NODE)}) ({newest}))"
        differ = f"{by('max', same_step, *_PART)} > {by('min', same_step, *_PART)}"
        odd = f"{by('max', select(training.ODD_REPLICAS), *JOB_LABELS)} > 0"
        return f"{by('group', differ, *JOB_LABELS)}\nor\n{by('group', odd, *JOB_LABELS)}"


class DataSkew(Condition):
    """Jobs whose heaviest rank has a load of more than ``above_ratio`` above the median."""

    DETECTED_AFTER = 10

    above_ratio: Annotated[float, number(0, 100)]

    def expression(self, windows: ScrapeWindows) -> str:
        """By how much the heaviest rank of each job is above the median, by kind of load."""
        return f"{load_excess(*JOB_LABELS)} > {self.above_ratio:g}"
