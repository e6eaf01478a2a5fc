"""The outcome of a run: evidence of its nodes, incidents, and the scheduler's word."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from lockstep_ledger.merge.facts import JobFacts
from lockstep_ledger.merge.precedence import CONSEQUENCES, NAMED_CLASSES, SCHEDULER, STRONG_OUTCOMES
from lockstep_ledger.merge.runs import SLACK_SECONDS, Run
from lockstep_ledger.merge.spans import Span
from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import NODE_EVENT_SECONDS, Evidence, NodeEvent

_MAX_NAMED = 100
Incidents = Callable[[float], Sequence[NodeEvent]]
"""Incidents of the nodes of a run from a time on."""


class Verdict(msgspec.Struct, frozen=True):
    """What became of a run, with the node and rank that decided it.

    Attributes:
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


_LOST_SECONDS = 30 * 86_400.0
"""For a start, and for any word on what a scheduler has started and not ended."""
Outcome = Callable[[], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class SettleTimeouts:
    """How long the ledger waits, by its own clock.

    Attributes:
        node_seconds: for the ends of the other nodes, after an end of one.
        requeue_seconds: for a start after a preemption, before it is the job's outcome.
        silent_seconds: for any event of a job that started and of which no scheduler speaks.
    """

    node_seconds: float = 600.0
    requeue_seconds: float = 86_400.0
    silent_seconds: float = 21_600.0


@dataclass(frozen=True, slots=True)
class Settlement:
    """Whether the newest run of a job is over.

    The outcome that questions take is that of the newest run, as if nothing more was heard of it.
    """

    facts: JobFacts
    runs: Sequence[Run]
    timeouts: SettleTimeouts

    @property
    def waits_in_queue(self) -> bool:
        """Whether the job went back to the queue after its newest run, and did not start again."""
        requeued = self.facts.requeued
        if not self.runs or requeued is None or not self.runs[-1].has_start:
            return False
        run = self.runs[-1]
        if run.scheduler is None:
            return requeued >= run.begin
        return run.scheduler_end is not None and requeued >= run.scheduler_end

    @property
    def is_complete(self) -> bool:
        """Whether all nodes of the newest run have ended, and as many as it needs."""
        run = self.runs[-1]
        if run.scheduler is not None and not run.spans and run.scheduler_end is not None:
            return True
        num_nodes = run.num_nodes(self.facts)
        has_all = num_nodes is None or len(run.newest) >= num_nodes
        return bool(run.spans) and not run.silent and has_all and not run.goes_on

    def settle_at(self, outcome: Outcome) -> float | None:
        """Clock from which on the ledger waits no longer; None where it waits for ever."""
        facts, timeouts = self.facts, self.timeouts
        if not self.runs or self.waits_in_queue:
            return facts.received + _LOST_SECONDS
        run = self.runs[-1]
        stated = (*run.newest, *([run.scheduler] if run.scheduler else ()))
        received = [span.end_received for span in stated if span.end_received is not None]
        if not received or run.goes_on:
            has_scheduler = run.scheduler is not None
            return facts.received + (_LOST_SECONDS if has_scheduler else timeouts.silent_seconds)
        first = min(received)
        settle_at: float = first if self.is_complete else first + timeouts.node_seconds
        if run.has_start and outcome() == "preempted":
            settle_at = max(settle_at, first + timeouts.requeue_seconds)
        return settle_at

    def is_finished(self, settle_at: float | None, outcome: Outcome) -> bool:
        """Whether nothing is waited for any more."""
        facts = self.facts
        if not self.runs or self.waits_in_queue:
            return any(
                each.run_begin is None and each.time >= facts.heard for each in facts.settlements
            )
        run = self.runs[-1]
        if self.is_complete and not (run.has_start and outcome() == "preempted"):
            return True
        own = [
            each
            for each in facts.settlements
            if each.run_begin is not None and each.run_begin >= run.begin - SLACK_SECONDS
        ]
        is_due = settle_at is not None and settle_at <= facts.received
        # A later sign of life of a node tells that the ledger settled too early.
        stated = [run.scheduler] if run.scheduler is not None and run.is_left_open else []
        alive = max((span.alive for span in (*run.spans, *stated)), default=0.0)
        return bool(own) and (is_due or any(alive <= each.time for each in own))
