"""The outcome of a run: evidence of nodes, incidents, and the scheduler's word, by precedence."""

from dataclasses import dataclass, replace

from lockstep_outcomes.classify import classify
from lockstep_outcomes.evidence import NODE_EVENT_SECONDS, Evidence, NodeEvent

from .arrivals import Fact
from .runs import Run

_CONSEQUENCES = ("peer_failure", "collective_timeout")
_CLASSES = ("infra", "user")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What became of a run.

    Attributes:
        failure_class: None where nobody has to act.
        time: of the end that decides; None where there is none.
        is_from_pages: whether no launcher said so, only the pages of its ranks.
    """

    outcome: str
    failure_class: str | None = None
    cause: str | None = None
    time: float | None = None
    is_from_pages: bool = False

    @property
    def names_cause(self) -> bool:
        return self.outcome == "failed" and self.failure_class in _CLASSES

    @property
    def is_open(self) -> bool:
        """Whether incidents may tell more."""
        return self.outcome in {"failed", "unknown"} and not self.names_cause


@dataclass(frozen=True, kw_only=True, slots=True)
class RunVerdict:
    """The verdict that holds, and the outcome of the side that lost."""

    verdict: Verdict
    lost: tuple[str, str] | None = None


def judge(run: Run, num_nodes: int | None) -> RunVerdict:
    """What became of a run with a start or an end, as if nothing more was heard of it."""
    nodes, scheduler = _node_verdict(run, num_nodes), _scheduler_verdict(run)
    if nodes is not None and nodes.outcome != "unknown":
        nodes = _with_incidents(run, nodes)
    lost = None
    if nodes is None or scheduler is None:
        chosen = nodes or scheduler or _silence(run)
    else:
        decides = _scheduler_decides(nodes, scheduler)
        chosen, loser = (scheduler, nodes) if decides else (nodes, scheduler)
        # That a loop ended and its process failed are both true.
        is_status = nodes.is_from_pages and nodes.outcome == "succeeded"
        is_status = is_status and scheduler.outcome == "failed" and not scheduler.names_cause
        if loser.outcome not in {chosen.outcome, "unknown"} and not is_status:
            lost = ("launcher" if decides else "scheduler", loser.outcome)
    return RunVerdict(verdict=_with_incidents(run, chosen), lost=lost)


def silent_nodes(run: Run) -> list[str]:
    """Nodes that started in a run and did not report their end."""
    return [span.node for span in run.last_spans if span.end is None]


def is_preempted(run: Run) -> bool:
    """Whether anybody has a word of preemption in a run."""
    ends = [fact for fact in run.facts if fact.kind in {"attempt_ended", "job_finished"}]
    if run.scheduler is not None and run.scheduler.end_fact is not None:
        ends.append(run.scheduler.end_fact)
    return bool(run.preemptions) or any(fact.text("outcome") == "preempted" for fact in ends)


def _verdict(fact: Fact) -> Verdict:
    outcome = fact.text("outcome") or "unknown"
    stated = fact.text("failure_class")
    fallback = "unknown" if outcome in {"failed", "unknown"} else None
    return Verdict(
        outcome=outcome,
        failure_class=stated or fallback,
        cause=fact.text("cause"),
        time=fact.time,
        is_from_pages=fact.text("source") == "pages",
    )


def _silence(run: Run) -> Verdict:
    last = run.end if run.has_start else None
    return Verdict(outcome="unknown", failure_class="unknown", cause="node_silent", time=last)


def _node_verdict(run: Run, num_nodes: int | None) -> Verdict | None:
    """What the ends of the nodes say; None where no node has ended."""
    ends = [span.end_fact for span in run.last_spans if span.end_fact is not None]
    if not ends:
        return None
    verdicts = [_verdict(fact) for fact in sorted(ends, key=lambda fact: fact.key)]
    bad = [each for each in verdicts if each.outcome not in {"succeeded", "unknown"}]
    causes = [each for each in bad if each.cause not in _CONSEQUENCES]
    if bad:
        return (causes or bad)[0]
    is_missing = num_nodes is not None and len(run.last_spans) < num_nodes
    if silent_nodes(run) or is_missing:
        return _silence(run)
    unknown = [each for each in verdicts if each.outcome == "unknown"]
    if unknown:
        return unknown[0]
    return replace(verdicts[0], is_from_pages=any(each.is_from_pages for each in verdicts))


def _scheduler_verdict(run: Run) -> Verdict | None:
    """What the scheduler says; None where it says nothing of an end."""
    fact = None if run.scheduler is None else run.scheduler.end_fact
    verdict = None if fact is None else _verdict(fact)
    is_vague = verdict is None or verdict.is_open
    if is_vague and run.preemptions:
        return Verdict(outcome="preempted", cause="preemption", time=run.preemptions[0].time)
    return verdict


def _scheduler_decides(nodes: Verdict, scheduler: Verdict) -> bool:
    if nodes.outcome == "unknown":
        return scheduler.outcome != "unknown"
    if nodes.is_from_pages and nodes.outcome in {"succeeded", "preempted", "cancelled",
                                                 "time_limit", "not_converged"}:  # fmt: skip
        return scheduler.outcome not in {"succeeded", "unknown"}
    if scheduler.outcome in {"time_limit", "cancelled", "preempted"} or scheduler.names_cause:
        is_bare_signal = nodes.outcome == "cancelled" and scheduler.outcome != "cancelled"
        return nodes.outcome == "preempted" or nodes.is_open or is_bare_signal
    return False


def _with_incidents(run: Run, verdict: Verdict) -> Verdict:
    """The verdict of the outcome table on a run's incidents, where it has no cause and they do."""
    reference = verdict.time if verdict.time is not None else run.end
    events = tuple(
        NodeEvent(
            sign=fact.text("sign") or "",
            node=fact.node or None,
            ranks=tuple(fact.fields.get("ranks") or ()),
            detail=fact.text("detail") or "",
            time=fact.time,
        )
        for fact in run.incidents
        if fact.time >= reference - NODE_EVENT_SECONDS
    )
    found = classify(Evidence(node_events=events))
    if not verdict.is_open or found.outcome != "failed" or found.failure_class not in _CLASSES:
        return verdict
    return Verdict(
        outcome="failed", failure_class=found.failure_class, cause=found.cause, time=verdict.time
    )
