"""How the ends that the nodes of a job report become one outcome, and what a silent node means."""

from dataclasses import dataclass

from lockstep_ledger.merge.job import NodeRun, Run
from lockstep_records.outcomes.classify import classify
from lockstep_records.outcomes.evidence import NODE_EVENT_SECONDS, Evidence, NodeEvent

CONSEQUENCES = frozenset({"peer_failure", "collective_timeout"})
"""Causes of ends that another node caused: they decide only when no other end exists."""
_MAX_NAMED = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedOutcome:
    """The outcome of a job, with the node and rank that decided it."""

    outcome: str
    failure_class: str | None = None
    cause: str | None = None
    reason: str | None = None
    node: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class SilentNodes:
    """How many nodes reported no end, and the names of the first."""

    count: int
    names: list[str]


def silent_nodes(run: Run, expected_nodes: int | None) -> SilentNodes:
    """Nodes that started and reported no end; nodes that sent nothing are counted only."""
    machines = run.machines
    # A scheduler that reports the whole job has no nodes of its own to wait for.
    if run.scheduler is not None and not machines:
        return SilentNodes(0, [])
    silent = sorted(name for name, node in machines.items() if node.end is None)
    unseen = max(0, (expected_nodes or 0) - len(machines))
    numbered = [f"unseen {number}" for number in range(1, min(unseen, _MAX_NAMED) + 1)]
    return SilentNodes(len(silent) + unseen, (silent + numbered)[:_MAX_NAMED])


def merge_outcomes(run: Run, silent: SilentNodes) -> MergedOutcome:
    """One outcome from the ends of all nodes.

    The earliest end that is neither a success nor unknown decides; what others caused comes after
    it. Without one, the job is unknown where a node is silent and no scheduler has a word on it.
    """
    ends = sorted(
        ((name, node) for name, node in run.nodes.items() if node.outcome is not None),
        key=lambda entry: entry[1].end or 0.0,
    )
    decisive = [entry for entry in ends if entry[1].outcome not in {"succeeded", "unknown"}]
    causes = [entry for entry in decisive if entry[1].cause not in CONSEQUENCES]
    for name, node in causes or decisive:
        return _of(name, node)
    scheduler = run.scheduler
    is_confirmed = scheduler is not None and scheduler.outcome == "succeeded"
    if silent.count and not is_confirmed:
        return MergedOutcome(
            outcome="unknown",
            failure_class="unknown",
            cause="node_silent",
            reason=f"{silent.count} nodes reported no end, {silent.names[0]} among them",
            node=silent.names[0],
        )
    for name, node in ends:
        if node.outcome == "unknown" and not is_confirmed:
            return _of(name, node)
    return MergedOutcome(outcome="succeeded" if ends else "unknown")


def with_node_signs(merged: MergedOutcome, run: Run) -> MergedOutcome:
    """The outcome, judged by the nodes' incidents when their ends name no cause.

    A node tells what it knew at its end; the Xid of another node, or one that its agent read from
    the log a moment later, only the ledger can join with it. The outcome table judges it here too.
    """
    is_open = merged.outcome in {"failed", "unknown"} and merged.failure_class in {None, "unknown"}
    end = run.end
    if not is_open or not run.signs or end is None:
        return merged
    events = tuple(
        NodeEvent(sign=s.sign, node=s.node, ranks=tuple(s.ranks), detail=s.detail, time=s.time)
        for s in run.signs
        if s.time >= end - NODE_EVENT_SECONDS
    )
    judged = classify(Evidence(node_events=events))
    if judged.outcome != "failed" or judged.failure_class == "unknown":
        return merged
    deciding = next((event for event in events if event.detail in judged.reason), events[0])
    return MergedOutcome(
        outcome=judged.outcome,
        failure_class=judged.failure_class,
        cause=judged.cause,
        reason=judged.reason,
        node=judged.culprit_node or deciding.node,
        rank=judged.culprit_ranks[0] if judged.culprit_ranks else None,
    )


def _of(name: str, node: NodeRun) -> MergedOutcome:
    return MergedOutcome(
        outcome=node.outcome or "unknown",
        failure_class=node.failure_class,
        cause=node.cause,
        reason=node.reason,
        node=node.culprit_node or name or None,
        rank=node.rank,
    )
