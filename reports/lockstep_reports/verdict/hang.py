"""Names the rank that a hung job waits for, from Flight Recorder dumps.

Every rank waits for whoever its oldest outstanding operation needs. Culprits are the roots of these
waits: ranks that others wait for and that have nothing outstanding, or that are stuck in what
others have completed. Everybody else is a victim, in whatever group it waits.
"""

from collections import Counter
from collections.abc import Collection

from lockstep_reports.recording.collectives import FlightRecorderLog
from lockstep_reports.verdict.verdict import Verdict, unknown
from lockstep_reports.verdict.waits import Wait, WaitGraph, wait_graph
from lockstep_reports.wording import list_ranks, plural

_MAX_EVIDENCE = 16


def judge_hang(log: FlightRecorderLog) -> Verdict:
    """Who holds the others up; mismatched collectives; a deadlock; nobody; unknown."""
    if len(log.ranks) < 2:  # noqa: PLR2004  # a join needs two
        return unknown("One rank's dump was read; others are needed.")
    if mismatch := _mismatch(log):
        return mismatch
    graph = wait_graph(log)
    if circle := graph.circle():
        waits = [wait for wait in graph.waits if wait.waiter in circle]
        why = (
            f"{_listed(circle)} wait for each other in a circle that nobody else holds up:"
            " their order of operations differs."
        )
        return unknown(why, *_sentences(log, graph, waits), cause="deadlock")
    if roots := graph.roots():
        return _accuse(log, graph, roots)
    if graph.undumped:
        return _judge_undumped(log, graph)
    return _judge_without_roots(log, graph)


def _accuse(log: FlightRecorderLog, graph: WaitGraph, roots: tuple[int, ...]) -> Verdict:
    """The roots, unless they are most of the ranks."""
    waits = [wait for wait in graph.waits if wait.missing in roots]
    sentences = _sentences(log, graph, waits)
    if 2 * len(roots) > len(log.ranks):
        why = f"{plural(len(roots), 'rank')} of {len(log.ranks)} are out of step: no single rank's."
        return unknown(why, *sentences, cause="hang")
    return Verdict(kind="rank", ranks=roots, cause="hang", confidence=0.9, evidence=sentences)


def _judge_undumped(log: FlightRecorderLog, graph: WaitGraph) -> Verdict:
    """Unknown: a rank without a dump may be missing, or stand in the operation with the others."""
    waits = [wait for wait in graph.undumped if wait.missing not in log.ranks]
    silent = sorted({wait.missing for wait in waits})
    why = "The dumps do not show who has not entered what the others wait in."
    if silent:
        them = "it" if len(silent) == 1 else "them"
        why = (
            f"{_listed(silent)} left no dump, and the others wait for {them} or with {them}: look"
            " there first."
        )
    return unknown(why, *_sentences(log, graph, waits), cause="hang")


def _sentences(log: FlightRecorderLog, graph: WaitGraph, waits: list[Wait]) -> tuple[str, ...]:
    """Evidence: a sentence for each missing rank and operation, small groups first."""
    waiters_of: dict[tuple[int, str, int, str], list[int]] = {}
    for wait in waits:
        each = wait.operation
        key = (wait.missing, each.group, each.sequence, each.kind)
        waiters_of.setdefault(key, []).append(wait.waiter)
    sentences = []
    smallest_first = sorted(waiters_of, key=lambda key: (len(log.groups.get(key[1], ())), key))
    for key in smallest_first[:_MAX_EVIDENCE]:
        missing, group, number, kind = key
        name, waiters = log.names.get(group) or group, waiters_of[key]
        state = "has" if missing in log.ranks else "may have"
        waiting = f"{_listed(waiters).lower()} {'waits' if len(waiters) == 1 else 'wait'}"
        where = f"{kind} {number} of group {name}; {waiting} there"
        if kind in {"send", "recv"}:
            where = f"the other half of the {kind} of group {name} that {waiting} in"
        sentences.append(f"Rank {missing} {state} not entered {where}.")
    for rank, operation in sorted(graph.stuck.items())[:_MAX_EVIDENCE]:
        name = log.names.get(operation.group) or operation.group
        sentences.append(
            f"Rank {rank} is stuck in {operation.kind} {operation.sequence} of group {name}, which"
            " others have completed."
        )
    idle = [rank for rank in sorted({wait.missing for wait in waits}) if rank in graph.idle]
    if idle:
        sentences.append(f"{_listed(idle)}: no collective outstanding, so held up outside of them.")
    return tuple(sentences)


def _listed(ranks: Collection[int]) -> str:
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {list_ranks(sorted(ranks))}".capitalize() if ranks else "nobody"


def _mismatch(log: FlightRecorderLog) -> Verdict | None:
    """The first collective that members of a group entered as different operations."""
    kinds_of: dict[tuple[str, int], dict[int, str]] = {}
    for entry in log.collectives:
        if not entry.is_completed:
            kinds_of.setdefault((entry.group, entry.sequence), {})[entry.rank] = entry.kind
    for (group, sequence), kinds in sorted(kinds_of.items(), key=lambda entry: entry[0][1]):
        counted = Counter(kinds.values()).most_common()
        if len(counted) < 2:  # noqa: PLR2004  # all the same
            continue
        sentence = f"Collective {sequence} of group {log.names.get(group) or group}: " + "; ".join(
            f"{_listed([r for r, k in kinds.items() if k == kind])} entered {kind}"
            for kind, _ in counted
        )
        cause, evidence = "mismatched collectives", f"{sentence}."
        if counted[0][1] == counted[1][1]:  # no majority, so no rank is the odd one out
            return unknown(evidence, cause=cause)
        minority = tuple(sorted(r for r, kind in kinds.items() if kind != counted[0][0]))
        return Verdict(
            kind="rank", ranks=minority, cause=cause, confidence=0.9, evidence=(evidence,)
        )
    return None


def _judge_without_roots(log: FlightRecorderLog, graph: WaitGraph) -> Verdict:
    """Nobody when nothing is outstanding; unknown when all have entered what they stand in."""
    num_dumps = f"Dumps of {plural(len(log.ranks), 'rank')} were joined."
    stuck = {*graph.entered, *(wait.waiter for wait in graph.waits)}
    if stuck:
        why = (
            f"{_listed(stuck)} stand in operations that every rank they need has entered: which"
            " rank or link holds them up is not in the dumps."
        )
        return unknown(why, num_dumps, cause="hang")
    if log.overwritten:
        why = (
            f"The rings of {_listed(log.overwritten).lower()} no longer hold the oldest"
            " operation that is outstanding; record more with TORCH_FR_BUFFER_SIZE."
        )
        return unknown(why, num_dumps, cause="hang")
    evidence = ("No rank waits for another in any collective.", num_dumps)
    return Verdict(kind="nobody", evidence=evidence)
