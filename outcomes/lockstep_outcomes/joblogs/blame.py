"""The first cause of a failure, by the findings of a log: a rank, a node, the workload, nobody."""

import re
import signal
from collections import Counter
from dataclasses import dataclass
from typing import Any

from lockstep_catalogue.vocabulary import FailureClass, OutcomeOrRunning, Verdict
from lockstep_outcomes.joblogs.kinds import KIND_BY_NAME, SOFTWARE_XIDS, Kind, Tier
from lockstep_outcomes.joblogs.model import Finding, JobLog
from lockstep_outcomes.joblogs.prefix import split_prefix
from lockstep_records.events.event import PREEMPTED

_MOST_NAMED, _MOST_QUOTED = 8, 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Outcome and blame before the times are added.

    Attributes:
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


def failure_by(finding: Finding, blame: Verdict, reason: str, **fields: Any) -> Judgement:
    """A failure by its first finding; ``fields`` of it hold over those of the finding's kind."""
    kind = KIND_BY_NAME[finding.kind]
    stated = {"cause": kind.name, "failure_class": kind.failure_class} | fields
    return Judgement(outcome="failed", blame=blame, reason=reason, first=finding, **stated)


def tier_of(log: JobLog, finding: Finding) -> Tier:
    """What a finding proves; Xids of software, and a rendezvous after work, are consequences."""
    is_software = finding.kind == "xid" and int(finding.key or 0) in SOFTWARE_XIDS
    is_late = finding.kind == "rendezvous" and log.last_work is not None
    return Tier.VICTIM if is_software or is_late else KIND_BY_NAME[finding.kind].tier


def victims_of(log: JobLog, findings: list[Finding]) -> list[Finding]:
    """The findings that only follow from what happened elsewhere."""
    return [f for f in findings if tier_of(log, f) in (Tier.NETWORK, Tier.VICTIM)]


def quoted(finding: Finding) -> str:
    """The line that proves it, as the end of a sentence."""
    text = split_prefix(finding.first.text)[1].strip()
    return f": {text[: _MOST_QUOTED - 3]}..." if len(text) > _MOST_QUOTED else f": {text}"


def most_ranks(log: JobLog) -> str:
    """Most ranks of the job, as the start of a sentence."""
    return f"Most or all of {log.world_size} ranks" if log.world_size else "All ranks"


def capitalised(text: str) -> str:
    """The text with a capital first letter, as the start of a sentence."""
    return text[:1].upper() + text[1:]


def rank_list(ranks: tuple[int, ...]) -> str:
    """The first eight ranks, and dots where there are more."""
    return ", ".join(map(str, ranks[:_MOST_NAMED])) + (", ..." if len(ranks) > _MOST_NAMED else "")


_WORDS = {"Killed": 9, "egmentation": 11, "Bus error": 7, "Aborted": 6}
_CAUSES = {11: "segfault", 7: "bus_error", 9: "killed"}
_WEAKNESS = {-6: 1, -9: 1, -15: 2}
_FEW = 0.5
_SHELL = 128  # a shell reports a signal as 128 plus its number


def judge_exits(log: JobLog, early: list[Finding]) -> Judgement | None:
    """The failure by the exits that launchers report; None where they report no failure."""
    exits = _own_exits(early)
    if not exits:
        return None
    first = min(exits, key=_weakness)
    code = next(iter(first.codes), None)
    number = _signal_number(first, code)
    by_code = first.key if code is None else f"exit code {code}"
    says = f"ended by {_signal_name(number)}" if number else by_code
    cause = _CAUSES.get(number, "exit")
    alike = _most_alike(log, exits, first)
    ranks = () if alike else tuple(sorted(first.ranks))
    if alike and cause == "killed":
        reason = f"{most_ranks(log)} were killed ({says}), and nothing tells by whom."
        return failure_by(first, "unknown", reason, failure_class="unknown", cause=cause)
    if alike:
        reason = f"{most_ranks(log)} ended alike ({says}) and reported no cause."
        return failure_by(first, "workload", reason, failure_class="user", cause=cause)
    node = next(iter(first.nodes), None)
    where = f" on node {node}" if node and not ranks else ""
    whose = f"Rank {rank_list(ranks)}" if ranks else f"A rank{where}"
    end = "nothing tells by whom" if cause == "killed" else "reported no cause"
    return failure_by(
        first, "rank" if ranks else "group" if where else "unknown",
        f"{whose} failed first ({says}) and {end}.",
        ranks=ranks, group=node, failure_class="unknown", cause=cause,
    )  # fmt: skip


def _own_exits(early: list[Finding]) -> list[Finding]:
    """Exits of ranks; else of tasks that ended by themselves; else of any that ended."""
    exits = [f for f in early if f.kind == "exit_line" and f.ranks] or [
        f for f in early if f.kind == "srun_exit" and not _was_ended(f.key)
    ]
    exits = exits or [
        f for f in early if f.kind == "exit_line" or (f.kind == "srun_exit" and "Killed" in f.key)
    ]
    return [f for f in exits if not set(f.codes) & {0, PREEMPTED}]


def _weakness(finding: Finding) -> tuple[bool, int]:
    """How little an exit tells of a failure of its own; of equals the one printed first counts.

    torchrun marks the failure that it observed first. By SIGTERM a launcher takes down whatever is
    left, and by SIGKILL what does not go; by SIGABRT a rank ends that lost another.
    """
    codes = {code if code < 0 else _SHELL - code for code in finding.codes}
    return " first" not in finding.key, max((_WEAKNESS.get(code, 0) for code in codes), default=0)


def _signal_number(first: Finding, code: int | None) -> int:
    number = 0 if code is None else -code if code < 0 else max(0, code - _SHELL)
    return number or next((value for word, value in _WORDS.items() if word in first.key), 0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _most_alike(log: JobLog, exits: list[Finding], first: Finding) -> bool:
    """Whether more than half of all ranks ended as the first did."""
    alike = {
        rank
        for f in exits
        if f.codes == first.codes and (f.codes or f.key == first.key)
        for rank in f.ranks
    }
    return len(alike) > 1 and len(alike) > _FEW * (log.world_size or 0)


def ranks_by_exits(log: JobLog, first: Finding) -> tuple[int, ...]:
    """The ranks whose exit fits a failure printed without a rank: the launcher's root cause."""
    exits = log.select_kinds("exit_line")
    # Abort and termination follow the failure of another rank too.
    signals = [f for f in exits if any(code < 0 and code not in (-6, -15) for code in f.codes)]
    if first.kind in {"segfault", "bus_error", "host_oom"} and signals:
        return tuple(sorted({rank for f in signals for rank in f.ranks}))
    root = _root_exit(log)
    if root is None:
        return _odd_task(log)
    alike = [f for f in exits if set(f.codes) & set(root.codes)]
    if first.count > 1 and first.num_origins == 0:
        return tuple(sorted({rank for f in alike for rank in f.ranks}))
    return root.ranks


def _root_exit(log: JobLog) -> Finding | None:
    """The exit that a launcher calls the first, or that one rank alone had by itself."""
    exits = log.select_kinds("exit_line")
    if not exits:
        return None
    best = [f for f in exits if _weakness(f) == min(map(_weakness, exits))]
    is_first, weakness = " first" in best[0].key, _weakness(best[0])[1]
    is_own = not weakness or (weakness == 1 and not victims_of(log, list(log.findings)))
    is_alone = len(best) == 1 == len(best[0].ranks)
    return best[0] if is_first or (is_own and is_alone) else None


def _odd_task(log: JobLog) -> tuple[int, ...]:
    """The tasks that failed by themselves, by Slurm; empty where tasks are nodes of torchrun."""
    if log.select_kinds("exit_line"):
        return ()
    ended = [f for f in log.select_kinds("srun_exit") if not _was_ended(f.key)]
    return ended[0].ranks if ended else ()


def _was_ended(how: str) -> bool:
    return "Terminated" in how or "Killed" in how or how.endswith(("143", "137", "code 0"))


_RAISED = frozenset({"exception", "data_error"})
_RANK_KINDS = _RAISED | {"gpu_oom", "segfault", "shape_mismatch", "not_finite", "device_assert"}
"""Kinds that each rank prints for itself, so that lines without a prefix can be counted."""
# The kernel names the mapping in which a process touched what is not its own.
_LIBRARY = re.compile(r"\bin ([\w.+-]+)\[")
_MOST_SHARE, _MANY = 0.5, 4


def find_first_cause(log: JobLog, before: int | None) -> Judgement | None:
    """The first cause; None when nothing failed.

    Evidence in the order of precedence; weaker evidence counts only without stronger:

    1. a line that names a cause or a crash: what calls itself a warning last, causes before
       crashes, then the earliest line; a warning after which training went on is none,
    2. exits by a signal that names a cause, such as SIGSEGV,
    3. a rank that others name as lost,
    4. lines of victims (time-outs, lost peers) and of the network: the fabric, different
       collectives, or the rank that the others waited for,
    5. other exit statuses.

    A signal comes before victims because a rank that waits fails after the one it waits for; a
    plain status comes last because victims exit with one too.

    Args:
        log: what was read.
        before: position of the line by which the job was ended from outside or reported success;
            what follows it is a consequence. None when there is none.
    """
    early = [f for f in log.findings if _may_be_cause(log, f, before)]
    causes = [f for f in early if tier_of(log, f) in (Tier.CAUSE, Tier.CRASH)]
    if causes:
        first = min(causes, key=lambda f: (f.is_mild, tier_of(log, f), early.index(f)))
        return _judge_first(log, first, causes)
    exits = judge_exits(log, early)
    lost = [f for f in early if tier_of(log, f) is Tier.LOST]
    victims = victims_of(log, early)
    if exits is not None and (exits.cause != "exit" or not (lost or victims)):
        return exits
    if lost and len(ranks := {rank for f in lost for rank in f.ranks}) <= max(
        1, (log.world_size or 0) // 4
    ):
        return _judge_lost(lost[0], tuple(sorted(ranks)))
    return _judge_victims(log, early) if victims or lost else exits


def _may_be_cause(log: JobLog, finding: Finding, before: int | None) -> bool:
    """Whether nobody had ended the job before, and no restart or progress shows it survived."""
    since = max(log.restart_order, log.progress_order if finding.is_mild else -1)
    return (before is None or finding.order < before) and finding.last_order > since


def _judge_lost(first: Finding, ranks: tuple[int, ...]) -> Judgement:
    """A rank that others, or its own watchdog, call lost: nothing tells why."""
    whose = f"Rank {rank_list(ranks)}" if ranks else "A rank"
    says = f"{KIND_BY_NAME[first.kind].says}{_waited(first)}"
    reason = f"{whose} was lost first ({says}); why is not told"
    return failure_by(first, "rank" if ranks else "unknown", reason + quoted(first), ranks=ranks)


def _judge_first(log: JobLog, first: Finding, causes: list[Finding]) -> Judgement:
    """Whom a cause names: few ranks themselves; where most failed alike, the workload."""
    kind = KIND_BY_NAME[first.kind]
    same = [
        f for f in causes if f.kind == first.kind and (f.key == first.key or f.kind not in _RAISED)
    ]
    ranks = tuple(sorted({rank for f in same for rank in f.ranks}))
    ranks = ranks or ranks_by_exits(log, first)
    what, words = _cause_text(first, kind)
    if kind.blame != "group" and _failed_everywhere(log, same, ranks):
        alike = f"{most_ranks(log)} failed alike ({what}): no single rank is to blame{words}"
        unknown = kind.failure_class == "unknown"
        whose = "user" if unknown else kind.failure_class
        return failure_by(first, "workload", alike, failure_class=whose)
    root = _root_exit(log)
    ended = _odd_task(log) if root is None else root.ranks
    is_alone = 0 < len(ranks) <= (log.world_size or 0) // 4 and ranks == ended
    if kind.blame == "nobody" or (kind.blame == "workload" and not is_alone):
        return failure_by(first, kind.blame, f"{capitalised(what)}{words}")
    ranks = ranks or _silent_among_victims(log)
    node = next((node for f in same for node in f.nodes), None)
    if not ranks and node is not None:
        return failure_by(first, "group", f"{capitalised(what)} on node {node}{words}", group=node)
    if not ranks:
        reason = f"{capitalised(what)}; the log does not tell on which rank{words}"
        return failure_by(first, "unknown", reason)
    where = f"{capitalised(what)} on rank {rank_list(ranks)}"
    if _breaks_off(log, first):
        reason = f"{where}, and the log breaks off before others tell{words}"
        return failure_by(first, "unknown", reason)
    return failure_by(first, "rank", where + words, ranks=ranks, group=node)


def _cause_text(finding: Finding, kind: Kind) -> tuple[str, str]:
    text = finding.first.text
    raised = text[max(0, text.find(finding.key.partition(":")[0])) :]
    if finding.kind == "exception":
        return raised, "."
    details = {"data_error": f" ({raised})", "xid": f" (Xid {finding.key})"}
    if finding.kind == "segfault" and (library := _LIBRARY.search(text)):
        return f"{kind.says} in {library[1]}", "."
    return kind.says + details.get(finding.kind, ""), quoted(finding)


def _failed_everywhere(log: JobLog, same: list[Finding], ranks: tuple[int, ...]) -> bool:
    """Whether more than half of all ranks failed alike, or several before training began."""
    world = log.world_size or 0
    if len(ranks) > 1 and len(ranks) > _MOST_SHARE * world:
        return True
    if same[0].kind not in _RANK_KINDS:
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
    return not victims_of(log, list(log.findings))


def _breaks_off(log: JobLog, first: Finding) -> bool:
    """Whether ranks raised what all may have raised, and no line shows how the others ended."""
    if first.kind not in _RANK_KINDS or (log.world_size or 0) <= 1:
        return False
    return not any(tier_of(log, f) not in (Tier.CAUSE, Tier.CRASH) for f in log.findings)


_WAITED = re.compile(
    r"(?:ran for|waiting|timed out after|stuck for|after) (?P<value>\d{1,12}) ?"
    r"(?P<unit>ms|milliseconds|s\b|sec)"
)
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


def _judge_victims(log: JobLog, early: list[Finding]) -> Judgement:
    """Whom victims alone name: the fabric, a mismatch, a rank that never came, or unknown."""
    victims = victims_of(log, early)
    network = [f for f in victims if tier_of(log, f) is Tier.NETWORK]
    if network:
        kind = KIND_BY_NAME[network[0].kind]
        return failure_by(network[0], "nobody", capitalised(kind.says) + quoted(network[0]))
    first = (victims or early)[0]
    if mismatch := _mismatched_collectives(log):
        reason = f"The ranks stood in different collectives: {mismatch}."
        return failure_by(
            first, "workload", reason, failure_class="user", cause="collective_mismatch"
        )
    # The watchdogs print how many collectives each rank had entered: the rank behind is waited for.
    late = _ranks_behind(log) or _silent_among_victims(log)
    if late:
        waited = _waited(first)
        reason = f"Rank {rank_list(late)} did not come to the collective that all others waited in"
        reason += f"{waited}."
        return failure_by(first, "rank", reason, ranks=late, failure_class="unknown", cause="hang")
    says = capitalised(KIND_BY_NAME[first.kind].says)
    reason = f"{says}{_waited(first)}, and nothing tells which rank failed first{quoted(first)}"
    return failure_by(first, "unknown", reason)


def _waited(finding: Finding) -> str:
    match = _WAITED.search(finding.first.text)
    if match is None:
        return ""
    seconds = float(match["value"]) / (1000 if match["unit"].startswith("m") else 1)
    return f" after {seconds:.0f} s"


def _mismatched_collectives(log: JobLog) -> str | None:
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
    if len(log.enqueued) <= 1:
        return ()
    counts = Counter(log.enqueued.values())
    least = min(counts)
    late = tuple(sorted(rank for rank, entered in log.enqueued.items() if entered == least))
    most_common = counts.most_common(1)[0][0]
    is_few = len(counts) > 1 and least < most_common and len(late) <= len(log.enqueued) / 4
    return late if is_few else ()
