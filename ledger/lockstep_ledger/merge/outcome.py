"""The outcome of a run: evidence of its nodes, incidents, and the scheduler's word."""

from collections.abc import Callable, Sequence

import msgspec

from lockstep_ledger.merge.precedence import CONSEQUENCES, NAMED_CLASSES, SCHEDULER, STRONG_OUTCOMES
from lockstep_ledger.merge.runs import Run
from lockstep_ledger.merge.spans import Span
from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import NODE_EVENT_SECONDS, Evidence, NodeEvent

_MAX_NAMED = 100
Incidents = Callable[[float], Sequence[NodeEvent]]
"""Incidents of the nodes of a run from a time on."""


class Verdict(msgspec.Struct, frozen=True):
    """What became of a run, with the node and rank that decided it.

    Attributes:
        time: of the end that decides; None where there is none.
        is_implied: whether it only follows from the pages of the ranks.
        loser, lost: source and outcome of the word that does not hold.
    """

    outcome: str = "unknown"
    failure_class: str | None = None
    cause: str | None = None
    reason: str | None = None
    node: str | None = None
    rank: int | None = None
    time: float | None = None
    is_implied: bool = False
    loser: str = ""
    lost: str = ""

    @property
    def names_cause(self) -> bool:
        """Whether it failed for a cause of a named class."""
        return self.outcome == "failed" and self.failure_class in NAMED_CLASSES

    @property
    def is_open(self) -> bool:
        """Whether incidents may tell more."""
        return self.outcome in {"failed", "unknown"} and not self.names_cause


def judge(run: Run, num_nodes: int | None, incidents: Incidents) -> Verdict:
    """What became of a run, as if nothing more was heard of it."""
    nodes, scheduler = _judge_nodes(run, num_nodes), _judge_scheduler(run)
    if nodes is not None and nodes.outcome != "unknown":
        nodes = _with_incidents(run, nodes, incidents)
    if nodes is None or scheduler is None:
        chosen = nodes or scheduler or _silence(run, num_nodes)
        return _with_incidents(run, chosen, incidents)
    decides = _scheduler_decides(nodes, scheduler)
    chosen, loser = (scheduler, nodes) if decides else (nodes, scheduler)
    verdict = _with_incidents(run, chosen, incidents)
    # A loop that has ended says nothing of the status with which its process did.
    is_bare = scheduler.outcome == "failed" and not scheduler.names_cause
    has_status = is_bare and nodes.is_implied and nodes.outcome == "succeeded"
    if has_status or loser.outcome in {chosen.outcome, "unknown"}:
        return verdict
    source = "launcher" if decides else "scheduler"
    return msgspec.structs.replace(verdict, loser=source, lost=loser.outcome)


def silent_nodes(run: Run, num_nodes: int | None) -> list[str]:
    """Nodes that reported no end; of those that sent nothing a number each."""
    if not run.spans:
        return []  # a scheduler that reports the whole job has no nodes of its own to wait for
    unseen = range(1, (num_nodes or 0) - len(run.newest) + 1)
    return [*run.silent, *(f"unseen {number}" for number in unseen[:_MAX_NAMED])][:_MAX_NAMED]


def _read_end(span: Span, run: Run) -> Verdict:
    end = span.ending
    assert end is not None
    may_blame = end.is_vouched or end.cause_node in {each.machine for each in run.spans}
    is_bad = end.outcome in {"failed", "unknown"}
    # A failure that nobody could class counts against the cluster until somebody does.
    return Verdict(
        outcome=end.outcome,
        failure_class=end.failure_class or ("unknown" if is_bad else None),
        cause=end.cause,
        reason=end.reason,
        node=(end.cause_node if may_blame else span.machine) or span.node or None,
        rank=end.rank,
        time=span.end,
        is_implied=end.is_implied,
    )


def _judge_nodes(run: Run, num_nodes: int | None) -> Verdict | None:
    """What the ends of the nodes say; None where no node has ended.

    The earliest end that is neither a success nor unknown decides; what others caused comes after
    it.
    """
    ends = [(span.ending.order, span) for span in run.newest if span.ending is not None]
    if not ends:
        return None
    ends.sort(key=lambda entry: entry[0])
    verdicts = [_read_end(span, run) for _, span in ends]
    bad = [each for each in verdicts if each.outcome not in {"succeeded", "unknown"}]
    causes = [each for each in bad if each.cause not in CONSEQUENCES]
    if bad:
        return (causes or bad)[0]
    if silent_nodes(run, num_nodes):
        return _silence(run, num_nodes)
    unknown = [each for each in verdicts if each.outcome == "unknown"]
    implied = [each for each in verdicts if each.is_implied]
    # All have succeeded only if each has: one that is implied makes the sum implied.
    return (unknown or implied or verdicts)[0]


def _judge_scheduler(run: Run) -> Verdict | None:
    """What the scheduler says; None where it says nothing of an end."""
    span = run.scheduler
    verdict = None if span is None or span.ending is None else _read_end(span, run)
    if run.preemptions and (verdict is None or verdict.is_open):
        return Verdict("preempted", cause="preemption", time=run.preemptions[0].time)
    return verdict


def _scheduler_decides(nodes: Verdict, scheduler: Verdict) -> bool:
    if nodes.outcome == "unknown":
        return scheduler.outcome != "unknown"
    if nodes.is_implied and nodes.outcome != "failed":
        return scheduler.outcome not in {"succeeded", "unknown"}
    if scheduler.outcome in STRONG_OUTCOMES or scheduler.names_cause:
        is_bare_signal = nodes.outcome == "cancelled" and scheduler.outcome != "cancelled"
        return nodes.outcome == "preempted" or nodes.is_open or is_bare_signal
    return False


def _silence(run: Run, num_nodes: int | None) -> Verdict:
    names = silent_nodes(run, num_nodes) or [SCHEDULER]
    return Verdict(
        outcome="unknown",
        failure_class="unknown",
        cause="node_silent",
        reason=f"{len(names)} nodes reported no end, {names[0]} among them",
        node=names[0] or None,
        time=run.end if run.has_start else None,
    )


def _with_incidents(run: Run, verdict: Verdict, incidents: Incidents) -> Verdict:
    """The verdict, judged by the nodes' incidents where it names no cause.

    A node tells what it knew at its end; the Xid of another node, or one that its agent read from
    the log a moment later, only the ledger can join with it. The outcome table judges it here too.
    """
    if not verdict.is_open:
        return verdict
    reference = verdict.time if verdict.time is not None else run.end
    events = tuple(incidents(reference - NODE_EVENT_SECONDS))
    judged = classify(Evidence(node_events=events)) if events else None
    if judged is None or judged.outcome != "failed" or judged.failure_class not in NAMED_CLASSES:
        return verdict
    deciding = next((event for event in events if (event.detail or "") in judged.reason), events[0])
    return Verdict(
        outcome=judged.outcome,
        failure_class=judged.failure_class,
        cause=judged.cause,
        reason=judged.reason,
        node=judged.cause_node or deciding.node,
        rank=judged.cause_ranks[0] if judged.cause_ranks else None,
        time=verdict.time,
    )
