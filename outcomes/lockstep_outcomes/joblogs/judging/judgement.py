"""What became of a job, before the times are added; whom a finding accuses, and the wording."""

from dataclasses import dataclass

from lockstep_catalogue.vocabulary import FailureClass, OutcomeOrRunning, Verdict
from lockstep_outcomes.joblogs.kinds import BY_NAME, SOFTWARE_XIDS, Tier
from lockstep_outcomes.joblogs.model import Finding, JobLog

_MOST_NAMED = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Outcome and blame before the times are added.

    Attributes:
        group: the node, where that is accused.
        first: lines of the first cause; None where no line is the cause by itself.
    """

    outcome: OutcomeOrRunning
    reason: str
    blame: Verdict = "nobody"
    ranks: tuple[int, ...] = ()
    group: str | None = None
    cause: str | None = None
    failure_class: FailureClass | None = None
    first: Finding | None = None


def accuse(
    finding: Finding,
    blame: Verdict,
    reason: str,
    *,
    ranks: tuple[int, ...] = (),
    group: str | None = None,
    failure_class: FailureClass | None = None,
    cause: str | None = None,
) -> Judgement:
    """A failure by its first finding."""
    kind = BY_NAME[finding.kind]
    return Judgement(
        outcome="failed",
        blame=blame,
        ranks=ranks,
        group=group,
        cause=cause or kind.name,
        failure_class=failure_class or kind.failure_class,
        reason=reason,
        first=finding,
    )


def tier_of(finding: Finding) -> Tier:
    """How near to the root cause a finding is; Xids of software are consequences."""
    if finding.kind == "xid" and int(finding.key or 0) in SOFTWARE_XIDS:
        return Tier.VICTIM
    return BY_NAME[finding.kind].tier


def victims_of(findings: list[Finding]) -> list[Finding]:
    """The findings that only follow from what happened elsewhere."""
    return [
        f
        for f in findings
        if tier_of(f) in (Tier.NETWORK, Tier.VICTIM) and f.kind != "hidden_cause"
    ]


def most_ranks(log: JobLog) -> str:
    """Most ranks of the job, as the start of a sentence."""
    return f"Most or all of {log.world_size} ranks" if log.world_size else "All ranks"


def capitalised(text: str) -> str:
    """The text with a capital first letter, as the start of a sentence."""
    return text[:1].upper() + text[1:]


def rank_list(ranks: tuple[int, ...]) -> str:
    """The first eight ranks, and dots where there are more."""
    return ", ".join(map(str, ranks[:_MOST_NAMED])) + (", ..." if len(ranks) > _MOST_NAMED else "")
