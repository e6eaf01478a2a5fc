"""Whom the findings of a failed job accuse: a rank, a node, the workload, nobody, or unknown."""

import re
from collections import Counter

from lockstep_outcomes.joblogs.judging.exits import ranks_by_exits, suspect_by_exits
from lockstep_outcomes.joblogs.judging.judgement import (
    Judgement,
    accuse,
    capitalised,
    most_ranks,
    rank_list,
    tier_of,
    victims_of,
)
from lockstep_outcomes.joblogs.kinds import BY_NAME, Kind, Tier
from lockstep_outcomes.joblogs.model import Finding, JobLog

_RAISED = frozenset({"exception", "data_error"})
_BY_THEMSELVES = _RAISED | {"gpu_oom", "segfault", "shape_mismatch", "not_finite", "device_assert"}
"""Kinds that each rank prints for itself, so that lines without a prefix can be counted."""
# The kernel names the mapping in which a process touched what is not its own.
_LIBRARY = re.compile(r"\bin ([\w.+-]+)\[")
_MOST_SHARE, _MANY = 0.5, 4


def find_suspect(log: JobLog, before: int | None) -> Judgement | None:
    """The first cause; None when nothing failed.

    Evidence in the order of precedence; weaker evidence counts only without stronger:

    1. a line that names a cause or a crash: causes before crashes, then the earliest line,
    2. exits by a signal that names a cause, such as SIGSEGV,
    3. lines of victims (time-outs, lost peers) and of the network: the fabric, different
       collectives, or the rank that the others waited for,
    4. other exit statuses.

    A signal comes before victims because a rank that waits fails after the one it waits for; a
    plain status comes last because victims exit with one too.

    Args:
        log: what was read.
        before: position of the line by which the job was ended from outside or reported success;
            what follows it is a consequence. None when there is none.
    """
    early = [
        f
        for f in log.findings
        if (before is None or f.order < before) and f.last_order > log.restart_order
    ]
    causes = [f for f in early if tier_of(f) in (Tier.CAUSE, Tier.CRASH) and f.kind != "srun_exit"]
    if causes:
        first = min(causes, key=lambda f: (tier_of(f), early.index(f)))
        return _accuse_first(log, first, causes)
    exits = suspect_by_exits(log, early)
    if exits is not None and (exits.cause != "exit" or not victims_of(early)):
        return exits
    if victims_of(early):
        return _accuse_in_hang(log, early)
    return exits


def _accuse_first(log: JobLog, first: Finding, causes: list[Finding]) -> Judgement:
    """Whom a cause accuses: few ranks themselves; where most failed alike, the workload."""
    kind = BY_NAME[first.kind]
    same = [
        f for f in causes if f.kind == first.kind and (f.key == first.key or f.kind not in _RAISED)
    ]
    ranks = tuple(sorted({rank for f in same for rank in f.ranks}))
    ranks = ranks or ranks_by_exits(log, first)
    what = _cause_text(first, kind)
    if kind.blame != "group" and _failed_everywhere(log, same, ranks):
        alike = f"{most_ranks(log)} failed alike ({what}): no single rank is to blame."
        unknown = kind.failure_class == "unknown"
        whose = "user" if unknown else kind.failure_class
        return accuse(first, "workload", alike, failure_class=whose)
    if kind.blame in {"workload", "nobody"}:
        return accuse(first, kind.blame, f"{capitalised(what)}.")
    ranks = ranks or _silent_among_victims(log)
    node = next((node for f in same for node in f.nodes), None)
    if kind.blame == "group" and not ranks and node is not None:
        return accuse(first, "group", f"{capitalised(what)}: {node}.", group=node)
    if ranks and _breaks_off(log, first):
        reason = f"{capitalised(what)} on rank {rank_list(ranks)}, and the log breaks off"
        return accuse(first, "unknown", f"{reason} before others tell.")
    if ranks:
        reason = f"{capitalised(what)} on rank {rank_list(ranks)}."
        return accuse(first, "rank", reason, ranks=ranks, group=node)
    return accuse(first, "unknown", f"{capitalised(what)}; the log does not tell on which rank.")


def _cause_text(finding: Finding, kind: Kind) -> str:
    raised = finding.first.text[max(0, finding.first.text.find(finding.key.partition(":")[0])) :]
    if finding.kind == "exception":
        return raised
    details = {"data_error": f" ({raised})", "xid": f" (Xid {finding.key})"}
    if finding.kind == "segfault" and (library := _LIBRARY.search(finding.first.text)):
        return f"{kind.says} in {library[1]}"
    return kind.says + details.get(finding.kind, "")


def _failed_everywhere(log: JobLog, same: list[Finding], ranks: tuple[int, ...]) -> bool:
    """Whether more than half of all ranks failed alike, or several before training began."""
    world = log.world_size or 0
    if len(ranks) > 1 and len(ranks) > _MOST_SHARE * world:
        return True
    if same[0].kind not in _BY_THEMSELVES:
        return False
    # A launcher may list some of the ranks only, and ends the others before they print.
    # Labels of ranks on a node are fewer than the ranks; then each traceback counts.
    many = max(len(f.ranks) or f.count for f in same)
    if many >= max(_MANY, _MOST_SHARE * world) and many > _MOST_SHARE * world:
        return True
    has_trained = log.last_step is not None or len(log.step_seconds) > 0
    if many <= 1 or same[0].kind not in _RAISED or has_trained:
        return False
    # A failure in each rank lets no rank time out waiting for others.
    return not victims_of(list(log.findings))


def _breaks_off(log: JobLog, first: Finding) -> bool:
    """Whether ranks raised what all may have raised, and no line shows how the others ended."""
    if first.kind not in _BY_THEMSELVES or (log.world_size or 0) <= 1:
        return False
    return not any(tier_of(f) not in (Tier.CAUSE, Tier.CRASH) for f in log.findings)


_LEFT_ALONE = ("nccl_timeout", "nccl_remote", "gloo_closed")


def _silent_among_victims(log: JobLog) -> tuple[int, ...]:
    """Ranks without a line of their own while nearly all others lost them: they died first."""
    world = log.world_size or 0
    victims = {rank for f in log.select_kinds(*_LEFT_ALONE) for rank in f.ranks}
    victims |= set(log.timeouts)
    # A hostile log may claim any world size.
    missing = tuple(sorted(set(range(world)) - victims)) if world <= 1 << 20 else ()
    few = len(missing) == 1 or len(missing) <= world // 4
    return missing if missing and few and len(victims) > 1 else ()


def _accuse_in_hang(log: JobLog, early: list[Finding]) -> Judgement:
    """Whom victims alone accuse: the fabric, a mismatch, a rank that never came, or unknown."""
    victims = victims_of(early)
    network = [f for f in victims if tier_of(f) is Tier.NETWORK]
    if network:
        kind = BY_NAME[network[0].kind]
        return accuse(network[0], "nobody", f"{capitalised(kind.says)}.")
    first = victims[0]
    if mismatch := _mismatched_collectives(log):
        reason = f"The ranks stood in different collectives: {mismatch}."
        return accuse(first, "workload", reason, failure_class="user", cause="collective_mismatch")
    # The watchdogs print how many collectives each rank had entered: the rank behind is waited for.
    late = _ranks_behind(log) or _silent_among_victims(log)
    if late:
        reason = f"Rank {rank_list(late)} did not come to the collective that all others waited in."
        return accuse(first, "rank", reason, ranks=late, failure_class="unknown", cause="hang")
    says = capitalised(BY_NAME[first.kind].says)
    return accuse(first, "unknown", f"{says}, and nothing tells which rank failed first.")


def _mismatched_collectives(log: JobLog) -> str | None:
    """Different kinds or sizes under one number of the collective."""
    by_number: dict[int, set[tuple[str, str]]] = {}
    for number, operation, size in log.timeouts.values():
        if number >= 0:
            by_number.setdefault(number, set()).add((operation, size))
    for number, collectives in sorted(by_number.items()):
        operations = {operation for operation, _ in collectives}
        if len(operations) > 1:
            return f"number {number} is {' here and '.join(sorted(operations))} there"
    return None


def _ranks_behind(log: JobLog) -> tuple[int, ...]:
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
