"""A slow rank of the job would not show: nobody waits, or most time is in no marked phase."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from lockstep_alerts.conditions.condition import Case, Timing
from lockstep_alerts.conditions.joins import in_training
from lockstep_alerts.entry import Entry
from lockstep_alerts.synthetic import (
    HEALTHY,
    JOB,
    NUM_RANKS,
    Regime,
    Stretch,
    moving,
    present,
    stepping,
)
from lockstep_catalogue import recorded
from lockstep_catalogue.promql import select
from lockstep_catalogue.windows import ScrapeWindows


@dataclass(frozen=True, kw_only=True, slots=True)
class Unobserved:
    """Has no limits of its own: those of the recorded series are the reports' too."""

    FIELDS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read(cls, entry: Entry) -> Self:
        """No field is read."""
        del entry
        return cls()

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of the step in the phase that may hide a slow rank, which the labels name."""
        del windows
        return f"{select(recorded.UNOBSERVED)} and {in_training()}"

    def detection_seconds(self, windows: ScrapeWindows) -> int:
        """The live window, all of it: its mean must have lost what was before."""
        return windows.live_seconds

    def evidence(self) -> str:
        """Nothing: the phase is a label."""
        return ""

    def cases(self, timing: Timing) -> list[Case]:
        """No rank waits; most time is in no phase; a healthy job."""
        by_deadline = timing.fires_by_seconds
        unwaited = {**HEALTHY, "sync": 0.0}
        unclaimed = {**HEALTHY, "other": sum(HEALTHY.values())}
        outlines: list[tuple[str, Mapping[str, float], str | None]] = [
            ("no rank waits", unwaited, "sync"),
            ("most time is in no phase", unclaimed, "other"),
            ("a healthy job", HEALTHY, None),
        ]
        return [
            Case(
                name=name,
                series=[
                    *present(by_deadline),
                    *moving(Stretch(by_deadline, 1)),
                    *stepping(Regime(by_deadline, (phases,) * NUM_RANKS)),
                ],
                at_seconds=by_deadline,
                fires=None if phase is None else {**JOB, "phase": phase},
            )
            for name, phases, phase in outlines
        ]
