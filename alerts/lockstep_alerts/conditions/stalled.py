"""No rank of a job makes progress for many steps."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Self

from lockstep_alerts.conditions.condition import Case, Timing
from lockstep_alerts.conditions.joins import (
    JOB_LABELS,
    ON_JOB,
    ON_RANK,
    RANK_LABELS,
    in_training,
    node_of_rank,
    num_ranks,
)
from lockstep_alerts.entry import Entry
from lockstep_alerts.model import Duration
from lockstep_alerts.synthetic import (
    JOB,
    NUM_RANKS,
    Samples,
    Stretch,
    moving,
    present,
    samples,
    steady,
)
from lockstep_catalogue import training
from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE
from lockstep_catalogue.metric import Label
from lockstep_catalogue.promql import by, eq, select
from lockstep_catalogue.vocabulary import PAUSE_PHASES
from lockstep_catalogue.windows import ScrapeWindows

_LE = Label(name="le", help="upper bound of a bucket")
_MAX_NAMED_RANKS = 16  # a page is read on a telephone
_MISSING_RANK = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Stalled:
    """Limits of the condition: the rule of a hang.

    Attributes:
        median_steps: steps of median length without progress.
        at_least: shortest time without progress.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("median_steps", "at_least")
    median_steps: float
    at_least: Duration

    @classmethod
    def read(cls, entry: Entry) -> Self:
        """The limits of an entry."""
        return cls(
            median_steps=entry.number("median_steps", 0, 1000), at_least=entry.duration("at_least")
        )

    def expression(self, windows: ScrapeWindows) -> str:
        """Seconds since the last progress of each job that stands still."""
        del windows  # no range of time: ages of the newest samples
        buckets = by("sum", select(training.STEP_SECONDS), *JOB_LABELS, _LE)
        progress = select(training.LAST_PROGRESS)
        floor = self.at_least.seconds
        # At the time of the scrape: until the next one, time() would age a job that moves.
        age = f"timestamp({progress}) - {progress}"
        return f"""{by("min", age, *JOB_LABELS)}
> {ON_JOB} (
  {self.median_steps:g} * histogram_quantile(0.5, {buckets}) > {floor}
  or {ON_JOB} {floor} * {by("group", progress, *JOB_LABELS)}
)
and {in_training()}
unless {ON_JOB} ({num_ranks(*PAUSE_PHASES)} > 0)"""

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """The shortest time without progress; 20 median steps where those are longer."""
        del windows
        return self.at_least.seconds

    def evidence(self) -> str:
        """Asks Prometheus which ranks have not entered the collective of the others."""
        of_job = select(training.RANK_WAITING, eq(CLUSTER, "%[1]s"), eq(JOB_ID, "%[2]s"))
        waiting = by("max", of_job, *RANK_LABELS)
        missing = f"{waiting} == 0 and {ON_JOB} {by('max', of_job, *JOB_LABELS)} == 1"
        named = f"({missing}) + {ON_RANK} group_left ({NODE.name}) {node_of_rank()}"
        query = f"query (printf `topk({_MAX_NAMED_RANKS}, {named})` $labels.cluster $labels.job_id)"
        return (
            f'{{{{ with {query} | sortByLabel "rank" }}}}'
            "Not waiting with the others: "
            "{{ range $i, $rank := . }}{{ if $i }}, {{ end }}"
            "rank {{ $rank.Labels.rank }} on {{ $rank.Labels.node }}{{ end }}."
            "{{ else }}No rank stands apart: all of them wait, or none does.{{ end }}"
        )

    def cases(self, timing: Timing) -> list[Case]:
        """A job that stops, and five that are no hang."""
        floor = self.at_least.seconds
        by_deadline = timing.fires_within_seconds
        bounds = training.STEP_SECONDS.buckets
        quick = (bounds[0], bounds[1])
        slow = next(pair for pair in pairwise(bounds) if self.median_steps * pair[0] > floor)
        limit_seconds = int(self.median_steps * slow[0])
        outlines: list[tuple[str, int, tuple[float, float], str, bool]] = [
            ("nobody moves", by_deadline, quick, "training", True),
            ("not long enough", floor - 1, quick, "training", False),
            ("long steps", limit_seconds - 1, slow, "training", False),
            ("a checkpoint is written", by_deadline, quick, "checkpoint", False),
            ("the job is over", by_deadline, quick, "done", False),
        ]
        return [
            Case(
                name=name,
                series=_stopped(timing.onset_seconds, seconds, bucket, state),
                at_seconds=timing.onset_seconds + seconds,
                fires=JOB if fires else None,
            )
            for name, seconds, bucket, state, fires in outlines
        ] + [
            Case(
                name="it moves",
                series=_stopped(timing.fires_by_seconds, 0, quick, "training"),
                at_seconds=timing.fires_by_seconds,
            )
        ]


def _stopped(
    onset_seconds: int, seconds: int, median_bucket: tuple[float, float], state: str
) -> list[Samples]:
    """A job that stops at the onset; the median of its steps lies between the two bounds."""
    lower, upper = (f"{bound:g}" for bound in median_bucket)
    total_seconds = onset_seconds + seconds
    node = {"instance": "n1:9400", **JOB, "node": "n1"}
    counts = {
        lower: steady(0, total_seconds),
        upper: steady(600, total_seconds),
        "+Inf": steady(600, total_seconds),
    }
    waiting = [
        samples(
            training.RANK_WAITING,
            steady(0 if rank == _MISSING_RANK else 1, total_seconds),
            instance="n1:9400",
            **JOB,
            rank=str(rank),
        )
        for rank in range(NUM_RANKS)
    ]
    return [
        *present(total_seconds, state),
        *moving(Stretch(onset_seconds, 1), Stretch(seconds, 0)),
        *(samples(training.STEP_SECONDS, v, "_bucket", **node, le=le) for le, v in counts.items()),
        *waiting,
    ]
