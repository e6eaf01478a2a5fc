"""What became of a job, before the times are added."""

from dataclasses import dataclass

from lockstep_catalogue.vocabulary import FailureClass, OutcomeOrRunning, Verdict
from lockstep_records.joblogs.model import Finding


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Outcome and blame before the times are added."""

    outcome: OutcomeOrRunning
    reason: str
    blame: Verdict = "nobody"
    ranks: tuple[int, ...] = ()
    group: str | None = None
    cause: str | None = None
    failure_class: FailureClass | None = None
    first: Finding | None = None
