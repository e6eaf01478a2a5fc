"""How the ends that the nodes of a job report become one outcome, and what a silent node means."""

from dataclasses import dataclass

from lockstep_ledger.merge.job import NodeRun, Run

CONSEQUENCES = frozenset({"peer_failure", "collective_timeout"})
"""Causes of ends that somebody else caused: they decide only where there is no other end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedOutcome:
    """The outcome of a job, with the node and rank that decided it."""

    outcome: str
    failure_class: str | None = None
    cause: str | None = None
    reason: str | None = None
    node: str | None = None
    rank: int | None = None


def silent_nodes(run: Run, expected_nodes: int | None) -> list[str]:
    """Nodes that started and reported no end; those that were never heard of are numbered."""
    machines = run.machines
    silent = sorted(name for name, node in machines.items() if node.end is None)
    unseen = max(0, (expected_nodes or 0) - len(machines))
    # A scheduler that reports the whole job has no nodes of its own to wait for.
    if run.scheduler is not None and not machines:
        return []
    return silent + [f"unseen {number}" for number in range(1, unseen + 1)]


def merge_outcomes(run: Run, silent: list[str]) -> MergedOutcome:
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
    if silent and not is_confirmed:
        return MergedOutcome(
            outcome="unknown",
            failure_class="unknown",
            cause="node_silent",
            reason=f"{len(silent)} nodes reported no end, {silent[0]} among them",
            node=silent[0],
        )
    for name, node in ends:
        if node.outcome == "unknown" and not is_confirmed:
            return _of(name, node)
    return MergedOutcome(outcome="succeeded" if ends else "unknown")


def _of(name: str, node: NodeRun) -> MergedOutcome:
    return MergedOutcome(
        outcome=node.outcome or "unknown",
        failure_class=node.failure_class,
        cause=node.cause,
        reason=node.reason,
        node=node.culprit_node or name or None,
        rank=node.rank,
    )
