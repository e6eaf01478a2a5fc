"""Whom the findings of a failed job accuse: a rank, a node, the workload, nobody, or unknown."""

from collections import Counter

from lockstep_records.joblogs.exits import exits_tell, ranks_by_exits
from lockstep_records.joblogs.kinds import BY_NAME, Kind, Tier
from lockstep_records.joblogs.model import Finding, JobLog
from lockstep_records.joblogs.suspect import (
    Suspect,
    accuse,
    all_of,
    named,
    tier_of,
    upper,
    victims_of,
)

_RAISED = frozenset({"exception", "data_error"})
_BY_THEMSELVES = _RAISED | {"gpu_oom", "segfault", "shape_mismatch", "not_finite", "device_assert"}
"""Kinds that each rank prints for itself, so that they can be counted where no label stands."""
_FEW, _MANY = 0.5, 4


def find_suspect(log: JobLog, before: int | None) -> Suspect | None:
    """The first cause; None when nothing failed.

    Args:
        log: what was read.
        before: place of the line by which the job ended from outside or told its success; what
            comes after it is a consequence. None when there is none.
    """
    early = [
        f
        for f in log.findings
        if (before is None or f.order < before) and f.last_order > log.restart_order
    ]
    causes = [f for f in early if tier_of(f) in (Tier.CAUSE, Tier.CRASH) and _counts(f)]
    if causes:
        first = min(causes, key=lambda f: (tier_of(f), early.index(f)))
        return _accused(log, first, causes)
    exits = exits_tell(log, early)
    if exits is not None and (exits.cause != "exit" or not victims_of(early)):
        return exits
    if victims_of(early):
        return _hung(log, early)
    return exits


def _counts(finding: Finding) -> bool:
    return finding.kind != "srun_exit"


def _accused(log: JobLog, first: Finding, causes: list[Finding]) -> Suspect:
    """Whom a cause accuses: few ranks are ranks, most of them are the workload."""
    kind = BY_NAME[first.kind]
    same = [
        f for f in causes if f.kind == first.kind and (f.key == first.key or f.kind not in _RAISED)
    ]
    ranks = tuple(sorted({rank for f in same for rank in f.ranks}))
    ranks = ranks or ranks_by_exits(log, first)
    what = _said(first, kind)
    if kind.blame != "group" and _everywhere(log, same, ranks):
        alike = f"{all_of(log)} failed alike ({what}): no single rank is to blame."
        unknown = kind.failure_class == "unknown"
        whose = "user" if unknown else kind.failure_class
        return accuse(first, "workload", alike, failure_class=whose)
    if kind.blame in {"workload", "nobody"}:
        return accuse(first, kind.blame, f"{upper(what)}.")
    ranks = ranks or _silent_among_victims(log)
    node = next((node for f in same for node in f.nodes), None)
    if kind.blame == "group" and not ranks and node is not None:
        return accuse(first, "group", f"{upper(what)}: {node}.", group=node)
    if ranks and _breaks_off(log, first):
        reason = f"{upper(what)} on rank {named(ranks)}, and the log breaks off before others tell."
        return accuse(first, "unknown", reason)
    if ranks:
        reason = f"{upper(what)} on rank {named(ranks)}."
        return accuse(first, "rank", reason, ranks=ranks, group=node)
    return accuse(first, "unknown", f"{upper(what)}; the log does not tell on which rank.")


def _said(finding: Finding, kind: Kind) -> str:
    raised = finding.first.text[max(0, finding.first.text.find(finding.key.partition(":")[0])) :]
    if finding.kind == "exception":
        return raised
    told = {"data_error": f" ({raised})", "xid": f" (Xid {finding.key})"}
    return kind.says + told.get(finding.kind, "")


def _everywhere(log: JobLog, same: list[Finding], ranks: tuple[int, ...]) -> bool:
    """Whether more than half of all ranks failed alike."""
    world = log.world_size or 0
    if ranks or same[0].kind not in _BY_THEMSELVES:
        return len(ranks) > 1 and len(ranks) > _FEW * world
    many = max(f.voices or f.count for f in same)
    return many >= max(_MANY, _FEW * world)


def _breaks_off(log: JobLog, first: Finding) -> bool:
    """Whether ranks raised what all may have raised, and nothing tells how the others ended."""
    if first.kind not in _BY_THEMSELVES or (log.world_size or 0) <= 1:
        return False
    return not any(tier_of(f) not in (Tier.CAUSE, Tier.CRASH) for f in log.findings)


def _silent_among_victims(log: JobLog) -> tuple[int, ...]:
    """Ranks that printed no timeout while nearly all others did: they had died before."""
    world = log.world_size or 0
    victims = {rank for f in log.of_kind("nccl_timeout") for rank in f.ranks}
    victims |= set(log.timeouts)
    missing = tuple(sorted(set(range(world)) - victims)) if world <= 1 << 20 else ()
    few = len(missing) == 1 or len(missing) <= world // 4
    return missing if missing and few and len(victims) > 1 else ()


def _hung(log: JobLog, early: list[Finding]) -> Suspect:
    """Only victims spoke: a fabric error, a mismatch, a rank that never came, or nobody knows."""
    victims = victims_of(early)
    network = [f for f in victims if tier_of(f) is Tier.NETWORK]
    if network:
        kind = BY_NAME[network[0].kind]
        return accuse(network[0], "nobody", f"{upper(kind.says)}.")
    first = victims[0]
    if mismatch := _mismatch(log):
        return Suspect(
            finding=first,
            cause="collective_mismatch",
            blame="workload",
            failure_class="user",
            order=first.order,
            reason=f"The ranks stood in different collectives: {mismatch}.",
        )
    late = _behind(log) or _silent_among_victims(log)
    if late:
        return Suspect(
            finding=first,
            cause="hang",
            blame="rank",
            ranks=late,
            order=first.order,
            reason=f"Rank {named(late)} did not come to the collective that all others waited in.",
        )
    says = upper(BY_NAME[first.kind].says)
    return accuse(first, "unknown", f"{says}, and nothing tells which rank failed first.")


def _mismatch(log: JobLog) -> str | None:
    """Different kinds or sizes under one number of the collective."""
    by_number: dict[int, set[tuple[str, str]]] = {}
    for number, operation, size in log.timeouts.values():
        if number >= 0:
            by_number.setdefault(number, set()).add((operation, size))
    for number, told in sorted(by_number.items()):
        operations = {operation for operation, _ in told}
        if len(operations) > 1:
            return f"number {number} is {' here and '.join(sorted(operations))} there"
    return None


def _behind(log: JobLog) -> tuple[int, ...]:
    """The minority of ranks that had entered fewer collectives than all others."""
    if len(log.enqueued) <= 1:
        return ()
    counts = Counter(log.enqueued.values())
    least = min(counts)
    late = tuple(sorted(rank for rank, entered in log.enqueued.items() if entered == least))
    most_common = counts.most_common(1)[0][0]
    return (
        late
        if len(counts) > 1 and least < most_common and len(late) <= len(log.enqueued) / 4
        else ()
    )
