"""Whom the findings of a failed job accuse: a rank, a node, the workload, nobody, or unknown."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from lockstep_records.events import PREEMPTED
from lockstep_records.joblog_kinds import BY_NAME, SOFTWARE_XIDS, FailureClass, Kind, Tier
from lockstep_records.joblogs import Finding, JobLog

_SIGNALS = {4: "illegal instruction", 6: "abort", 7: "bus error", 8: "arithmetic error",
            9: "kill", 11: "segmentation fault"}  # fmt: skip
_RAISED = frozenset({"exception", "data_error"})
_WORDS = {"Killed": "kill", "egmentation": "segmentation fault", "Bus error": "bus error",
          "Aborted": "abort"}  # fmt: skip
_BY_THEMSELVES = _RAISED | {"gpu_oom", "segfault", "shape_mismatch", "not_finite", "device_assert"}
"""Kinds that each rank prints for itself, so that they can be counted where no label stands."""
_FEW, _MANY = 0.5, 4
_SHELL = 128
_NAMED = 8


Blamed = Literal["rank", "group", "workload", "nobody", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """A failure's first cause, and whom it accuses."""

    finding: Finding | None
    cause: str
    blame: Blamed
    ranks: tuple[int, ...] = ()
    group: str | None = None
    failure_class: FailureClass = "unknown"
    reason: str = ""
    order: int = 0


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
    causes = [f for f in early if _tier(f) in (Tier.CAUSE, Tier.CRASH) and _counts(f)]
    if causes:
        first = min(causes, key=lambda f: (_tier(f), early.index(f)))
        return _accused(log, first, causes)
    exits = _exits(log, early)
    if exits is not None and (exits.cause != "exit" or not _victims(early)):
        return exits
    if _victims(early):
        return _hung(log, early)
    return exits


def _tier(finding: Finding) -> Tier:
    if finding.kind == "xid" and int(finding.key or 0) in SOFTWARE_XIDS:
        return Tier.VICTIM
    return BY_NAME[finding.kind].tier


def _counts(finding: Finding) -> bool:
    return finding.kind != "srun_exit"


def _victims(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if _tier(f) in (Tier.NETWORK, Tier.VICTIM)]


def _accused(log: JobLog, first: Finding, causes: list[Finding]) -> Suspect:
    """Whom a cause accuses: few ranks are ranks, most of them are the workload."""
    kind = BY_NAME[first.kind]
    same = [
        f for f in causes if f.kind == first.kind and (f.key == first.key or f.kind not in _RAISED)
    ]
    ranks = tuple(sorted({rank for f in same for rank in f.ranks}))
    ranks = ranks or _from_exits(log, first)
    what = _said(first, kind)
    if kind.blame != "node" and _everywhere(log, same, ranks):
        alike = f"{_all(log)} failed alike ({what}): no single rank is to blame."
        unknown = kind.failure_class == "unknown"
        whose = "user" if unknown else kind.failure_class
        return _suspect(first, "workload", alike, failure_class=whose)
    if kind.blame in {"workload", "nobody"}:
        return _suspect(first, kind.blame, f"{_upper(what)}.")
    ranks = ranks or _silent_among_victims(log)
    node = next((node for f in same for node in f.nodes), None)
    if kind.blame == "node" and not ranks and node is not None:
        return _suspect(first, "group", f"{_upper(what)}: {node}.", group=node)
    if ranks:
        reason = f"{_upper(what)} on rank {_named(ranks)}."
        return _suspect(first, "rank", reason, ranks=ranks, group=node)
    return _suspect(first, "unknown", f"{_upper(what)}; the log does not tell on which rank.")


def _said(finding: Finding, kind: Kind) -> str:
    raised = finding.first.text[max(0, finding.first.text.find(finding.key.partition(":")[0])) :]
    if finding.kind == "exception":
        return raised
    told = {"data_error": f" ({raised})", "xid": f" (Xid {finding.key})"}
    return kind.says + told.get(finding.kind, "")


def _suspect(
    finding: Finding,
    blame: Blamed,
    reason: str,
    *,
    ranks: tuple[int, ...] = (),
    group: str | None = None,
    failure_class: FailureClass | None = None,
) -> Suspect:
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


def _everywhere(log: JobLog, same: list[Finding], ranks: tuple[int, ...]) -> bool:
    """Whether more than half of all ranks failed alike."""
    world = log.world_size or 0
    if ranks or same[0].kind not in _BY_THEMSELVES:
        return len(ranks) > 1 and len(ranks) > _FEW * world
    many = max(f.voices or f.count for f in same)
    return many >= max(_MANY, _FEW * world)


def _from_exits(log: JobLog, first: Finding) -> tuple[int, ...]:
    """The ranks whose exit fits a failure that no label tells: the launcher's root cause."""
    exits = log.of_kind("summary_exit")
    signals = [f for f in exits if any(code < 0 and code not in (-6, -15) for code in f.codes)]
    if first.kind in {"segfault", "bus_error", "host_oom"} and signals:
        return tuple(sorted({rank for f in signals for rank in f.ranks}))
    root = [f for f in exits if " first" in f.key]
    codes = {code for f in root for code in f.codes}
    alike = [f for f in exits if set(f.codes) & codes]
    if first.count > 1 and first.voices == 0:
        return tuple(sorted({rank for f in alike for rank in f.ranks}))
    if root:
        return root[0].ranks
    return _odd_task(log)


def _odd_task(log: JobLog) -> tuple[int, ...]:
    """The tasks that Slurm saw fail by themselves, where they were ranks."""
    if log.of_kind("summary_exit"):
        return ()
    ended = [f for f in log.of_kind("srun_exit") if not _was_ended(f.key)]
    return ended[0].ranks if ended else ()


def _was_ended(how: str) -> bool:
    return "Terminated" in how or "Killed" in how or how.endswith(("143", "137", "code 0"))


def _silent_among_victims(log: JobLog) -> tuple[int, ...]:
    """Ranks that printed no timeout while nearly all others did: they had died before."""
    world = log.world_size or 0
    victims = {rank for f in log.of_kind("nccl_timeout") for rank in f.ranks}
    victims |= set(log.timeouts)
    missing = tuple(sorted(set(range(world)) - victims)) if world <= 1 << 20 else ()
    few = len(missing) == 1 or len(missing) <= world // 4
    return missing if missing and few and len(victims) > 1 else ()


def _exits(log: JobLog, early: list[Finding]) -> Suspect | None:
    """The launcher's word, where the ranks left none."""
    told = [f for f in early if f.kind == "summary_exit" and f.ranks] or [
        f for f in early if f.kind == "srun_exit" and not _was_ended(f.key)
    ]
    told = told or [
        f
        for f in early
        if f.kind == "summary_exit" or (f.kind == "srun_exit" and "Killed" in f.key)
    ]
    told = [f for f in told if not set(f.codes) & {0, PREEMPTED}]
    if not told:
        return None
    first = next((f for f in told if " first" in f.key), told[0])
    code = next(iter(first.codes), None)
    number = 0 if code is None else -code if code < 0 else code - _SHELL if code > _SHELL else 0
    how = _SIGNALS.get(number) or next(
        (way for sign, way in _WORDS.items() if sign in first.key), ""
    )
    alike = {
        rank
        for f in told
        if f.codes == first.codes and (f.codes or f.key == first.key)
        for rank in f.ranks
    }
    says = f"ended by {how}" if how else (f"exit code {code}" if code is not None else first.key)
    cause = {"segmentation fault": "segfault", "bus error": "bus_error", "kill": "killed"}.get(
        how, "exit"
    )
    world = log.world_size or 0
    if len(alike) > 1 and len(alike) > _FEW * world and cause == "killed":
        return Suspect(
            finding=first,
            cause=cause,
            blame="unknown",
            order=first.order,
            reason=f"{_all(log)} were killed, and nothing tells by whom.",
        )
    if len(alike) > 1 and len(alike) > _FEW * world:
        return Suspect(
            finding=first,
            cause=cause,
            blame="workload",
            failure_class="user",
            order=first.order,
            reason=f"{_all(log)} ended alike ({says}) and told no cause.",
        )
    ranks = tuple(sorted(first.ranks))
    whose = f"Rank {_named(ranks)}" if ranks else "A rank"
    return Suspect(
        finding=first,
        cause=cause,
        blame="rank" if ranks else "unknown",
        ranks=ranks,
        order=first.order,
        reason=f"{whose} failed first ({says}) and told no cause.",
    )


def _hung(log: JobLog, early: list[Finding]) -> Suspect:
    """Only victims spoke: a fabric error, a mismatch, a rank that never came, or nobody knows."""
    victims = _victims(early)
    network = [f for f in victims if _tier(f) is Tier.NETWORK]
    if network:
        kind = BY_NAME[network[0].kind]
        return _suspect(network[0], "nobody", f"{_upper(kind.says)}.")
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
            reason=f"Rank {_named(late)} did not come to the collective that all others waited in.",
        )
    says = _upper(BY_NAME[first.kind].says)
    return _suspect(first, "unknown", f"{says}, and nothing tells which rank failed first.")


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


def _all(log: JobLog) -> str:
    return f"Most or all of {log.world_size} ranks" if log.world_size else "All ranks"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _named(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:_NAMED])) + (", ..." if len(ranks) > _NAMED else "")
