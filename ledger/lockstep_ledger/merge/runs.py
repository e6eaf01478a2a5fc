"""Runs of a job: the scheduler's spans with those of nodes in them, and what no scheduler knows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from lockstep_ledger.merge.facts import JobFacts, Preemption
from lockstep_ledger.merge.spans import Span

SLACK_SECONDS = 5.0
"""How far a scheduler's whole seconds and a node's clock differ."""
_order = attrgetter("begin", "attempt", "node")


@dataclass(slots=True)
class Run:
    """A stretch in which the job had its resources; without a start, an end in the queue.

    Attributes:
        spans: of nodes, by begin; several of a node are restarts in place.
        parts: of the allocation, as the scheduler states them.
        has_parts: whether it states any of the job; then no run is counted by its num_gpus.
        newest: the newest span of each node, by node.
        has_end: whether anybody stated an end that holds.
        held, micros: GPU-microseconds by state of each span, and their sums.
    """

    scheduler: Span | None = None
    spans: list[Span] = field(default_factory=list)
    parts: list[Span] = field(default_factory=list)
    has_parts: bool = False
    preemptions: list[Preemption] = field(default_factory=list)
    newest: list[Span] = field(default_factory=list)
    begin: float = 0.0
    end: float = 0.0
    has_start: bool = False
    has_end: bool = False
    held: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    micros: dict[str, int] = field(default_factory=dict)

    def hold(self, span: Span, micros: dict[str, int]) -> None:
        """Adds the GPU time of a span, or replaces what it was."""
        sums, key = self.micros, (span.node, span.number)
        for state, number in self.held.get(key, {}).items():
            sums[state] -= number
        for state, number in micros.items():
            sums[state] = sums.get(state, 0) + number
        self.held[key] = micros

    @property
    def scheduler_end(self) -> float | None:
        """When the scheduler took or got back its resources; None where it does not say."""
        return None if self.scheduler is None else self.scheduler.end

    @property
    def silent(self) -> list[str]:
        """Nodes that started and did not report their end."""
        return [span.node for span in self.newest if span.end is None]

    @property
    def is_preempted(self) -> bool:
        """Whether anybody has a word of preemption in it."""
        ending = None if self.scheduler is None else self.scheduler.ending
        stated = ending is not None and ending.outcome == "preempted"
        return stated or bool(self.preemptions) or any(span.is_preempted for span in self.spans)

    def attempts(self) -> list[float]:
        """When each attempt began, the first with the run."""
        starts: dict[int, float] = {}
        for span in self.spans:
            for attempt, time in span.starts.items():
                starts[attempt] = min(time, starts.get(attempt, time))
        return [self.begin, *sorted(starts.values())[1:]]

    def num_nodes(self, facts: JobFacts) -> int | None:
        """Nodes that it needs; None where nobody says."""
        stated = facts.scheduler_value("num_nodes", self.scheduler_end)
        own = (span.num_nodes for span in self.spans if span.num_nodes is not None)
        stated = next(own, None) if stated is None else stated
        return facts.value("num_nodes") if stated is None else stated

    def close(self) -> "Run":
        """Fills in what follows from its spans."""
        stated, spans = self.scheduler, self.spans
        begins = [span.begin for span in spans]
        if stated is not None and (stated.has_start or not begins):
            begins.append(stated.begin)
        self.begin = min(begins)
        self.has_start = bool(stated and stated.has_start) or any(s.has_start for s in spans)
        newest = {span.node: span for span in spans}
        self.newest = [newest[node] for node in sorted(newest)]
        self.has_end = self.scheduler_end is not None or any(s.end is not None for s in self.newest)
        ends = [
            span.end for span in (*spans, *([stated] if stated else ())) if span.end is not None
        ]
        heard = [span.heard for span in spans] + ([stated.begin] if stated else [])
        self.end = max(ends) if ends else max([self.begin, *heard])
        return self


def runs_of(nodes: Iterable[Span], scheduler: Sequence[Span], parts: Iterable[Span], facts: JobFacts
            ) -> list[Run]:  # fmt: skip
    """The runs of a job by begin.

    Args:
        nodes: spans of all nodes, in any order.
        scheduler: its spans in order.
        parts: of the allocation.
        facts: of the job.
    """
    granted = [Run(scheduler=span) for span in scheduler if span.has_start]
    orphans: list[Span] = []
    for span in sorted(nodes, key=_order):
        owner = _granted_run(span.begin, granted)
        (orphans if owner is None else owner.spans).append(span)
    stated = [span for span in parts if span.has_start]
    for run in granted if stated else ():
        run.has_parts = True
    for span in stated if granted else ():
        # Words of one scheduler need no slack among each other.
        earlier = [run for run in granted if run.scheduler and run.scheduler.begin <= span.begin]
        (earlier or granted[:1])[-1].parts.append(span)
    own = _gather(orphans, facts.value("num_nodes") or 1)
    lone = [span for span in scheduler if not span.has_start]
    in_queue = [Run(scheduler=span) for span in lone if not _attach(span, own)]
    runs = sorted((run.close() for run in (*granted, *own, *in_queue)), key=attrgetter("begin"))
    for word in facts.preemptions if runs else ():
        find_run(runs, word.time).preemptions.append(word)
    return runs


def find_run(runs: Sequence[Run], time: float) -> Run:
    """The newest run that begins at or before a time, else the first."""
    return next((run for run in reversed(runs) if run.begin <= time), runs[0])


def _granted_run(begin: float, runs: Sequence[Run]) -> Run | None:
    """The scheduler's run in whose zone something begins."""
    for run in reversed(runs):
        span = run.scheduler
        if span is not None and begin >= span.begin - SLACK_SECONDS:
            return run if span.end is None or begin <= span.end + SLACK_SECONDS else None
    return None


def _gather(orphans: Sequence[Span], num_nodes: int) -> list[Run]:
    """Runs of spans that belong to no scheduler's span."""
    runs: list[Run] = []
    nodes: set[str] = set()
    open_end = 0.0
    for span in orphans:
        if not runs or span.node in nodes or _begins_anew(span, runs[-1], open_end, num_nodes):
            runs.append(Run())
            nodes, open_end = set(), 0.0
        runs[-1].spans.append(span)
        nodes.add(span.node)
        open_end = max(open_end, float("inf") if span.end is None else span.end)
    return runs


def _begins_anew(span: Span, run: Run, last_end: float, num_nodes: int) -> bool:
    """Whether a span of another node begins a run; the last end of this one may be infinite."""
    first_attempt = run.spans[0].attempt
    is_complete = span.has_start and len(run.spans) >= num_nodes
    is_over = last_end <= span.begin and (span.attempt < first_attempt or is_complete)
    return span.attempt > first_attempt or is_over


def _attach(end: Span, runs: Sequence[Run]) -> bool:
    """Gives a scheduler's end without a start to the newest run of nodes that it can end."""
    earliest = float("-inf") if end.after_requeue is None else end.after_requeue
    for run in reversed(runs):
        if run.scheduler is None and earliest <= run.spans[0].begin <= end.begin:
            run.scheduler = end
            return True
    return False
