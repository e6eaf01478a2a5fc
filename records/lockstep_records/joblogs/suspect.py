"""A suspect: the first cause of a failure and whom it accuses; and the words for it."""

from dataclasses import dataclass

from lockstep_catalogue.vocabulary import FailureClass, Verdict
from lockstep_records.joblogs.kinds import BY_NAME, SOFTWARE_XIDS, Tier
from lockstep_records.joblogs.model import Finding, JobLog

_NAMED = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """A failure's first cause, and whom it accuses."""

    finding: Finding | None
    cause: str
    blame: Verdict
    ranks: tuple[int, ...] = ()
    group: str | None = None
    failure_class: FailureClass = "unknown"
    reason: str = ""
    order: int = 0


def accuse(
    finding: Finding,
    blame: Verdict,
    reason: str,
    *,
    ranks: tuple[int, ...] = (),
    group: str | None = None,
    failure_class: FailureClass | None = None,
) -> Suspect:
    """A suspect by its first finding."""
    kind = BY_NAME[finding.kind]
    return Suspect(
        finding=finding,
        cause=kind.name,
        blame=blame,
        ranks=ranks,
        group=group,
        failure_class=failure_class or kind.failure_class,
        reason=reason,
        order=finding.order,
    )


def tier_of(finding: Finding) -> Tier:
    """How near to the cause a finding stands; Xids of software are consequences."""
    if finding.kind == "xid" and int(finding.key or 0) in SOFTWARE_XIDS:
        return Tier.VICTIM
    return BY_NAME[finding.kind].tier


def victims_of(findings: list[Finding]) -> list[Finding]:
    """The findings that only suffer from what happened elsewhere."""
    return [f for f in findings if tier_of(f) in (Tier.NETWORK, Tier.VICTIM)]


def all_of(log: JobLog) -> str:
    """The ranks that failed alike, to begin a sentence with."""
    return f"Most or all of {log.world_size} ranks" if log.world_size else "All ranks"


def upper(text: str) -> str:
    """The text with a capital, to begin a sentence with."""
    return text[:1].upper() + text[1:]


def named(ranks: tuple[int, ...]) -> str:
    """The first ranks, and that there are more."""
    return ", ".join(map(str, ranks[:_NAMED])) + (", ..." if len(ranks) > _NAMED else "")
