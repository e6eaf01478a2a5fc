"""Runs of a job: the scheduler's spans with the nodes' in them, and what no scheduler knows of."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .arrivals import Fact
from .spans import Span

SLACK_SECONDS = 5.0
"""How far a scheduler's whole seconds and a node's clock differ."""


@dataclass(kw_only=True, slots=True)
class Run:
    """A stretch in which the job had its resources; without a start, an end in the queue.

    Attributes:
        scheduler: its span; None where it does not know of the run.
        spans: of nodes, by begin; several of a node are restarts in place.
        preemptions: words of the scheduler that its resources are taken.
        incidents: node events while it ran, of any node.
    """

    scheduler: Span | None = None
    spans: list[Span] = field(default_factory=list)
    preemptions: list[Fact] = field(default_factory=list)
    incidents: list[Fact] = field(default_factory=list)

    @property
    def has_start(self) -> bool:
        """Whether anybody stated a start."""
        stated = self.scheduler is not None and self.scheduler.has_start
        return stated or any(span.has_start for span in self.spans)

    @property
    def begin(self) -> float:
        """The earliest begin that anybody stated."""
        begins = [span.begin for span in self.spans]
        if self.scheduler is not None and (self.scheduler.has_start or not begins):
            begins.append(self.scheduler.begin)
        return min(begins)

    @property
    def scheduler_end(self) -> float | None:
        """When the scheduler took or got back its resources; None where it does not say."""
        return None if self.scheduler is None else self.scheduler.end

    @property
    def end(self) -> float:
        """The latest end that anybody stated, else the last event in it."""
        ends = [span.end for span in self.spans if span.end is not None]
        if self.scheduler_end is not None:
            ends.append(self.scheduler_end)
        if ends:
            return max(ends)
        heard = [span.last_heard for span in self.spans]
        return max(
            [self.begin, *heard, *([] if self.scheduler is None else [self.scheduler.begin])]
        )

    @property
    def last_spans(self) -> list[Span]:
        """The newest span of each node, by node."""
        newest = {span.node: span for span in sorted(self.spans, key=lambda each: each.begin)}
        return [newest[node] for node in sorted(newest)]

    @property
    def facts(self) -> list[Fact]:
        """All that its nodes state in it, in order."""
        return sorted((f for span in self.spans for f in span.facts), key=lambda fact: fact.key)


def runs_of(
    node_spans: Sequence[Span], scheduler: Sequence[Span], num_nodes: int | None
) -> list[Run]:
    """The runs of a job by begin.

    Args:
        node_spans: of all nodes, in any order.
        scheduler: its spans in order.
        num_nodes: of the job; None where nobody says.
    """
    stated = [span for span in scheduler if span.has_start]
    runs = [Run(scheduler=span) for span in stated]
    orphans: list[Span] = []
    for span in sorted(node_spans, key=lambda each: (each.begin, each.attempt, each.node)):
        owner = _scheduler_run(span, runs)
        (orphans if owner is None else owner.spans).append(span)
    runs_of_nodes = _gather(orphans, num_nodes or 1)
    ends = [span for span in scheduler if not span.has_start]
    runs += runs_of_nodes
    runs += [Run(scheduler=span) for span in ends if not _attach(span, runs_of_nodes)]
    return sorted(runs, key=lambda run: run.begin)


def _scheduler_run(span: Span, runs: Sequence[Run]) -> Run | None:
    """The scheduler's run in whose zone a span begins."""
    for run in reversed(runs):
        assert run.scheduler is not None
        if span.begin >= run.scheduler.begin - SLACK_SECONDS:
            end = run.scheduler.end
            return run if end is None or span.begin <= end + SLACK_SECONDS else None
    return None


def _gather(orphans: Sequence[Span], num_nodes: int) -> list[Run]:
    """Runs of node spans that belong to no scheduler's span."""
    runs: list[Run] = []
    for span in orphans:
        if not runs or _begins_anew(span, runs[-1], num_nodes):
            runs.append(Run())
        runs[-1].spans.append(span)
    return runs


def _begins_anew(span: Span, run: Run, num_nodes: int) -> bool:
    if any(other.node == span.node for other in run.spans):
        return True
    first_attempt = run.spans[0].attempt
    if span.attempt > first_attempt:
        return True
    have_ended = all(other.end is not None and other.end <= span.begin for other in run.spans)
    is_full = span.has_start and len(run.spans) >= num_nodes
    return have_ended and (span.attempt < first_attempt or is_full)


def _attach(end: Span, runs: Sequence[Run]) -> bool:
    """Gives a scheduler's end without a start to the newest run of nodes that it can end."""
    earliest = float("-inf") if end.after_requeue is None else end.after_requeue
    for run in reversed(runs):
        if run.scheduler is None and earliest <= run.begin <= end.begin:
            run.scheduler = end
            return True
    return False


def add_words(runs: Sequence[Run], facts: Sequence[Fact]) -> None:
    """Gives preemptions and incidents to the newest run that begins before them, else the first."""
    for fact in facts:
        earlier = [run for run in runs if run.begin <= fact.time]
        run = earlier[-1] if earlier else runs[0]
        if fact.kind == "job_preempted":
            run.preemptions.append(fact)
        elif fact.kind == "node_event":
            run.incidents.append(fact)
