"""One rank arrives later than the others by more than a share of the step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from lockstep_alerts.conditions.condition import Case, Timing
from lockstep_alerts.conditions.joins import (
    ON_JOB,
    ON_RANK,
    RANK_LABELS,
    in_training,
    newest_of_rank,
    node_of_rank,
)
from lockstep_alerts.entry import Entry
from lockstep_alerts.synthetic import (
    HEALTHY,
    JOB,
    Samples,
    Stretch,
    healthy,
    moving,
    one_rank_late,
    present,
    stepping,
)
from lockstep_catalogue import recorded
from lockstep_catalogue.labels import NODE, PHASE
from lockstep_catalogue.promql import by, select
from lockstep_catalogue.windows import ScrapeWindows

_LATE_RANK = 2
_PHASE_SECONDS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """Limits of the condition.

    Attributes:
        above_ratio: lateness of one rank as a share of the mean step.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("above_ratio",)
    above_ratio: float

    @classmethod
    def read(cls, entry: Entry) -> Self:
        """The limits of an entry."""
        return cls(above_ratio=entry.number("above_ratio", 0, 1))

    def expression(self, windows: ScrapeWindows) -> str:
        """Lateness ratio of each late rank, with the phase and the node in the labels."""
        # Own work must explain half of it: who writes a checkpoint for all is no straggler.
        explained = (
            f"{by('sum', select(recorded.EXCESS), *RANK_LABELS)}"
            f" > {ON_JOB} group_left () ({self.above_ratio / 2:g} * {select(recorded.STEP_MEAN)})"
        )
        # The mean over a minute: a phase that flickers would begin a new alert each time.
        excess_mean = (
            f"avg_over_time({select(recorded.EXCESS)}[{windows.at_least(_PHASE_SECONDS)}])"
        )
        phase_of_rank = newest_of_rank((*RANK_LABELS, PHASE), excess_mean)
        return f"""(
  {select(recorded.LATENESS_RATIO)} > {self.above_ratio:g}
  and {ON_RANK} ({explained})
  and {in_training()}
)
* {ON_RANK} group_left ({PHASE.name})
  {phase_of_rank}
* {ON_RANK} group_left ({NODE.name})
  {node_of_rank()}"""

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """The live window, all of it: a rank that is just late enough must fill it.

        Where fewer than four steps end in it the long window applies, and the page is later.
        """
        return windows.live_seconds

    def evidence(self) -> str:
        """Nothing: rank, node and phase are labels."""
        return ""

    def cases(self, timing: Timing) -> list[Case]:
        """One rank late by more and by less than the limit, and two healthy jobs."""
        by_deadline = timing.fires_by_seconds
        above = {"backward": _extra_seconds(1.05 * self.above_ratio)}
        below = {"backward": _extra_seconds(0.8 * self.above_ratio)}
        pause = {"checkpoint": _extra_seconds(2 * self.above_ratio)}
        culprit = {**JOB, "rank": str(_LATE_RANK), "phase": "backward", "node": "n1"}
        return [
            Case(
                name="one rank late",
                series=_straggling(timing, above),
                at_seconds=by_deadline,
                fires=culprit,
            ),
            Case(
                name="less late than that",
                series=_straggling(timing, below),
                at_seconds=by_deadline,
            ),
            Case(
                name="one rank writes the checkpoint",
                series=_straggling(timing, pause),
                at_seconds=by_deadline,
            ),
            Case(
                name="all ranks are alike",
                series=_straggling(timing, {}),
                at_seconds=by_deadline,
            ),
        ]


def _extra_seconds(ratio: float) -> float:
    """Seconds a step of one rank that are this share of the step that they lengthen."""
    return sum(HEALTHY.values()) * ratio / (1 - ratio)


def _straggling(timing: Timing, extra: Mapping[str, float]) -> list[Samples]:
    """A job in which one rank spends ``extra`` seconds a step by phase from the onset on."""
    seconds = timing.fires_within_seconds
    steps = stepping(healthy(timing.onset_seconds), one_rank_late(seconds, _LATE_RANK, extra))
    total_seconds = timing.fires_by_seconds
    return [*present(total_seconds), *moving(Stretch(total_seconds, 1)), *steps]
