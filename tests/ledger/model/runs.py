"""Spans of nodes and of the scheduler, and the runs of a job that they make."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .arrivals import Fact

_SPEAKING = ("job_started", "attempt_started", "attempt_ended", "job_finished", "goodput")


@dataclass(kw_only=True, slots=True)
class Span:
    """Time from a start to an end of a node, or of the job in the scheduler's words.

    Attributes:
        attempt: that of the start.
        opened_by: key of its first event.
        begin: of a span with an unknown start, its end.
        end: None where nobody stated it.
        bound: begin of the next span of this node, which ends this one at the latest.
        end_fact: the job_finished that ended it; None also where a requeue ended it.
        after_requeue: of an end without a start: when the job went back to the queue before it.
        facts: all that its node states from its begin to the next span's begin.
        quiet_seconds: from the last start, end or report of its node to its begin.
    """

    node: str
    attempt: int
    begin: float
    opened_by: tuple[float, int, int, str]
    end: float | None = None
    bound: float | None = None
    has_start: bool = True
    end_fact: Fact | None = None
    after_requeue: float | None = None
    facts: list[Fact] = field(default_factory=list)
    quiet_seconds: float = math.inf

    @property
    def last_heard(self) -> float:
        """Time of the last event of the node in it."""
        return max((fact.time for fact in self.facts), default=self.begin)


def spans_of_node(facts: Iterable[Fact], zones: Sequence[float] = ()) -> list[Span]:
    """Spans of a node; a start in a later run of the scheduler than the open span is no restart."""
    events = list(facts)
    spans: list[Span] = []
    is_open, spoken = False, 0.0
    begun, early = set[int](), dict[int, Fact]()
    for fact in events:
        if fact.kind in ("job_started", "attempt_started"):
            begun.add(fact.attempt)
        elif fact.kind == "job_finished" and fact.attempt not in begun:
            early[fact.attempt] = fact
    early = {attempt: fact for attempt, fact in early.items() if attempt in begun}
    for fact in events:
        if fact.kind == "job_finished" and fact.attempt in early:
            continue
        is_restart = is_open and _zone(spans[-1].begin, zones) == _zone(fact.time, zones)
        if fact.kind == "job_started" or (fact.kind == "attempt_started" and not is_restart):
            quiet = fact.time - spoken if spans else math.inf
            spans.append(
                Span(node=fact.node, attempt=fact.attempt, begin=fact.time, opened_by=fact.key,
                     quiet_seconds=quiet)
            )  # fmt: skip
            is_open = True
        elif fact.kind == "job_finished" and is_open:
            spans[-1].end, spans[-1].end_fact = fact.time, fact
            is_open = False
        elif fact.kind == "job_finished" and not spans:
            spans.append(_end_without_start(fact))
        if fact.kind in ("job_started", "attempt_started") and fact.attempt in early:
            spans[-1].end, spans[-1].end_fact = fact.time, early.pop(fact.attempt)
        spoken = fact.time if fact.kind in _SPEAKING else spoken
    _bind(spans)
    _assign(events, spans)
    return spans


def spans_of_scheduler(words: Iterable[Fact]) -> list[Span]:
    """The scheduler's spans in order; an end in the queue is a span without a start."""
    spans: list[Span] = []
    is_open, requeued, words = False, None, list(words)
    for fact in words:
        if fact.kind == "job_started":
            spans.append(Span(node="", attempt=fact.attempt, begin=fact.time, opened_by=fact.key))
            is_open, requeued = True, None
        elif fact.kind == "job_requeued":
            if is_open:
                spans[-1].end = fact.time
            is_open, requeued = False, fact.time
        elif fact.kind == "job_finished" and is_open:
            spans[-1].end, spans[-1].end_fact = fact.time, fact
            is_open = False
        elif fact.kind == "job_finished" and (requeued is not None or not spans):
            spans.append(_end_without_start(fact, requeued))
            requeued = None
    _bind(spans)
    _assign(words, spans)
    return spans


def _zone(time: float, zones: Sequence[float]) -> int:
    return sum(begin <= time for begin in zones)


def _end_without_start(fact: Fact, requeued: float | None = None) -> Span:
    return Span(
        node=fact.node, attempt=fact.attempt, begin=fact.time, opened_by=fact.key, end=fact.time,
        has_start=False, end_fact=fact, after_requeue=requeued,
    )  # fmt: skip


def _bind(spans: list[Span]) -> None:
    for span, following in pairwise(spans):
        span.bound = following.begin


def _assign(events: list[Fact], spans: list[Span]) -> None:
    """Gives every event of a node to its newest span whose first event is at or before it."""
    for fact in events:
        earlier = [span for span in spans if span.opened_by <= fact.key]
        if earlier:
            earlier[-1].facts.append(fact)


NO_SIGNS_OF_LIFE = ("job_finished", "job_preempted", "resources_released")
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
    def has_end(self) -> bool:
        """Whether anybody stated an end that holds."""
        return self.scheduler_end is not None or any(s.end is not None for s in self.last_spans)

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
        return max(ends) if ends else self.heard

    @property
    def heard(self) -> float:
        """Time of the newest word on it, ends among them."""
        stated = [] if self.scheduler is None else [self.scheduler]
        ends = [span.end for span in (*self.spans, *stated) if span.end is not None]
        return max([self.begin, *ends, *(span.last_heard for span in (*self.spans, *stated))])

    @property
    def is_left_open(self) -> bool:
        """Whether the scheduler began it and never ended it."""
        return (
            self.scheduler is not None and self.scheduler.has_start and self.scheduler_end is None
        )

    @property
    def goes_on(self) -> bool:
        """Whether a scheduler that never ended it says something after the ends of its nodes."""
        ends = [span.end for span in self.last_spans if span.end is not None]
        words = self.scheduler.facts if self.scheduler is not None and self.is_left_open else []
        life = [fact.time for fact in words if fact.kind not in NO_SIGNS_OF_LIFE]
        return bool(ends) and max(life, default=0.0) > max(ends) + SLACK_SECONDS

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
    """The runs of a job by begin; ``num_nodes`` is None where nobody says."""
    stated = [span for span in scheduler if span.has_start]
    runs = [Run(scheduler=span) for span in stated]
    orphans: list[Span] = []
    for span in sorted(node_spans, key=lambda each: (each.begin, each.attempt, each.node)):
        owner = _scheduler_run(span, runs)
        (orphans if owner is None else owner.spans).append(span)
    runs_of_nodes = _gather(orphans, num_nodes)
    ends = [span for span in scheduler if not span.has_start]
    runs += runs_of_nodes
    runs += [Run(scheduler=span) for span in ends if not _attach(span, runs_of_nodes)]
    return sorted(runs, key=lambda run: run.begin)


def _scheduler_run(span: Span, runs: Sequence[Run]) -> Run | None:
    """The scheduler's run in whose zone a span begins, else the first that the span reaches."""
    stated = [(run.scheduler, run) for run in runs if run.scheduler is not None]
    begun = [pair for pair in stated if span.begin >= pair[0].begin - SLACK_SECONDS]
    if begun:
        own, run = begun[-1]
        if own.end is None or span.begin <= own.end + SLACK_SECONDS:
            return run
    last = span.last_heard if span.end is None else span.end
    reached = [run for own, run in stated if own.begin - SLACK_SECONDS > span.begin]
    return next((r for r in reached if r.scheduler and r.scheduler.begin < last), None)


TOGETHER_SECONDS = 60.0
"""Within which the nodes of a run begin."""


def _gather(orphans: Sequence[Span], num_nodes: int | None) -> list[Run]:
    """Runs of node spans that belong to no scheduler's span: what began together is one.

    While anything that began before goes on, who comes or comes again changes the size of a run.
    """
    runs: list[Run] = []
    for span in orphans:
        present = runs[-1].spans if runs else []
        before = [each for each in present if each.node == span.node]
        left = _last_sign(before[-1]) if before else -math.inf
        alive = [
            s
            for s in present
            if _last_sign(s) > span.begin + SLACK_SECONDS and s not in before[-1:]
        ]
        again = {id(s) for i, s in enumerate(present) if s.node in {o.node for o in present[:i]}}
        grown = [s for s in alive if not before or s.begin < left - 600.0 * (id(s) in again)]
        is_early = bool(runs) and span.begin <= min(s.begin for s in present) + 60.0
        lacks = is_early if num_nodes is None else len({s.node for s in present}) < num_nodes
        has_room = not before and lacks
        if not runs or not (grown or has_room):
            if runs:
                runs[-1].spans = [s for s in present if s not in alive]
            runs.append(Run(spans=alive))
        runs[-1].spans.append(span)
    return runs


def _last_sign(span: Span) -> float:
    just_begun = span.begin + TOGETHER_SECONDS
    return max(span.last_heard, just_begun) if span.end is None else span.end


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
