"""Runs of a job: the scheduler's spans with those of nodes in them, and what no scheduler knows."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from lockstep_ledger.merge.allocation import Interval, Steps
from lockstep_ledger.merge.facts import JobFacts, Preemption
from lockstep_ledger.merge.spans import Span
from lockstep_records.events.event import MAX_FUTURE_SECONDS

SLACK_SECONDS = 5.0
"""How far a scheduler's whole seconds and a node's clock differ."""
TOGETHER_SECONDS = 60.0
"""Within which the nodes of a run begin."""
_CLOCK_SECONDS = 2 * MAX_FUTURE_SECONDS
"""How far the clocks of two nodes differ at the most."""
_order = attrgetter("begin", "attempt", "node")


@dataclass(slots=True)
class Run:
    """A stretch in which the job had its resources; without a start, an end in the queue.

    Attributes:
        spans: of nodes, by begin; several of a node are restarts in place.
        parts: of the allocation, as the scheduler states them.
        granted, used: by the scheduler and by launchers; ``allocation`` is the heavier one, and
            ``steps`` are its sums.
        exceeded: GPUs used and granted, where launchers state more for over a minute.
        held, micros: GPU-microseconds by state of each span, and their sums.
        words: number of words on the GPUs of each span, as they were when it was derived.
    """

    scheduler: Span | None = None
    spans: list[Span] = field(default_factory=list)
    parts: list[Span] = field(default_factory=list)
    granted: list[Interval] | None = None
    used: list[Interval] = field(default_factory=list)
    allocation: list[Interval] = field(default_factory=list)
    unused: list[Interval] = field(default_factory=list)
    exceeded: set[tuple[float, float]] = field(default_factory=set)
    steps: Steps = field(default_factory=dict)
    preemptions: list[Preemption] = field(default_factory=list)
    newest: list[Span] = field(default_factory=list)
    begin: float = 0.0
    end: float = 0.0
    heard: float = 0.0
    has_start: bool = False
    has_end: bool = False
    is_over: bool = False
    held: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    micros: dict[str, int] = field(default_factory=dict)
    words: dict[tuple[str, int], int] = field(default_factory=dict)

    def hold(self, span: Span, micros: dict[str, int]) -> None:
        """Adds the GPU time of a span, or replaces what it was."""
        sums, key = self.micros, (span.node, span.number)
        for state, number in self.held.get(key, {}).items():
            sums[state] -= number
        for state, number in micros.items():
            sums[state] = sums.get(state, 0) + number
        self.held[key], self.words[key] = micros, len(span.stated)

    @property
    def until(self) -> float:
        """Up to when its GPU time counts: the second of the newest word, unless it is over."""
        return math.inf if self.is_over else float(math.floor(self.heard))

    @property
    def scheduler_end(self) -> float | None:
        """When the scheduler took or got back its resources; None where it does not say."""
        return None if self.scheduler is None else self.scheduler.end

    @property
    def is_left_open(self) -> bool:
        """Whether the scheduler began it and never said its end."""
        span = self.scheduler
        return span is not None and span.has_start and span.end is None

    @property
    def goes_on(self) -> bool:
        """Whether the scheduler has a word on a run that it did not end, after its nodes' ends."""
        span, ends = self.scheduler, (each.end for each in self.newest if each.end is not None)
        return self.is_left_open and span is not None and (
            span.alive > max(ends, default=math.inf) + SLACK_SECONDS
        )  # fmt: skip

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
        """When each attempt began, the first with the run: nodes that start together are one.

        Nodes do not agree on a number: a new one may count from 0. So an attempt ends where a node
        of it starts again.
        """
        starts = sorted((time, s.node) for s in self.spans for time in s.starts.values())
        begins, nodes = [self.begin], set[str]()
        for time, node in starts:
            if node in nodes:
                begins.append(time)
                nodes.clear()
            nodes.add(node)
        return begins

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
        own = [*spans, *filter(None, [stated])]
        ends = [span.end for span in own if span.end is not None]
        self.heard = max([self.begin, *ends, *(span.heard for span in own)])
        self.end = max(ends) if ends else self.heard
        return self


def runs_of(nodes: Iterable[Span], scheduler: Sequence[Span], parts: Iterable[Span], facts: JobFacts
            ) -> list[Run]:  # fmt: skip
    """The runs of a job by begin, of nodes' spans in any order and the scheduler's in order."""
    granted = [Run(scheduler=span) for span in scheduler if span.has_start]
    orphans: list[Span] = []
    since = [span.begin - SLACK_SECONDS for span in scheduler if span.has_start]
    for span in sorted(nodes, key=_order):
        owner = _granted_run(span, granted, bisect_right(since, span.begin))
        (orphans if owner is None else owner.spans).append(span)
    for span in (each for each in parts if each.has_start and granted):
        # Words of one scheduler need no slack among each other.
        earlier = [run for run in granted if run.scheduler and run.scheduler.begin <= span.begin]
        (earlier or granted[:1])[-1].parts.append(span)
    own = _gather(orphans, facts.value("num_nodes"))
    lone = [span for span in scheduler if not span.has_start]
    in_queue = [Run(scheduler=span) for span in lone if not _attach(span, own)]
    runs = sorted((run.close() for run in (*granted, *own, *in_queue)), key=attrgetter("begin"))
    for word in facts.preemptions if runs else ():
        find_run(runs, word.time).preemptions.append(word)
    return runs


def find_run(runs: Sequence[Run], time: float) -> Run:
    """The newest run that begins at or before a time, else the first."""
    return next((run for run in reversed(runs) if run.begin <= time), runs[0])


def _granted_run(span: Span, runs: Sequence[Run], zone: int) -> Run | None:
    """The scheduler's run in whose zone a span begins, else the first one that it reaches into."""
    for run in runs[:zone][-1:]:
        end = run.scheduler_end
        if end is None or span.begin <= end + SLACK_SECONDS:
            return run
    last = span.heard if span.end is None else span.end
    return next((r for r in runs[zone:] if r.scheduler and r.scheduler.begin < last), None)


def _gather(orphans: Sequence[Span], num_nodes: int | None) -> list[Run]:
    """Runs of spans that belong to no scheduler's span: what began together is one.

    It has all its nodes with as many as the job says, else with those that began in a minute.
    While any that began before goes on, who comes or comes again changes the size of a run; those
    that come again while their clocks differ begin the next one together.
    """
    runs: list[list[Span]] = []
    first, newest, begin = dict[str, Span](), dict[str, Span](), -math.inf
    for span in orphans:
        earlier, run = newest.get(span.node), runs[-1] if runs else []
        is_early = span.begin <= begin + TOGETHER_SECONDS
        has_room = is_early if num_nodes is None else len(newest) < num_nodes
        lacks = bool(runs) and earlier is None and has_room
        left = _end_of(earlier) if earlier else math.inf
        goes_on = (
            s.begin < left - _CLOCK_SECONDS * (first[s.node] is not s)
            for s in _outlasts(span, run)
            if s is not earlier
        )
        if not (lacks or any(goes_on)):
            alive = [each for each in _outlasts(span, run) if each is not earlier]
            for each in alive:
                run.remove(each)
            runs.append(alive)
            newest = {each.node: each for each in alive}
            first, begin = {**newest}, min([span.begin, *(each.begin for each in alive)])
        runs[-1].append(span)
        newest[span.node] = span
        first.setdefault(span.node, span)
    return [Run(spans=spans) for spans in runs]


def _outlasts(span: Span, run: Sequence[Span]) -> Iterator[Span]:
    """What goes on while another span begins, the newest first."""
    begin = span.begin + SLACK_SECONDS
    return (each for each in reversed(run) if _end_of(each) > begin)


def _end_of(span: Span) -> float:
    """When a node was last in a span, as far as anybody knows; one that just began goes on."""
    return max(span.heard, span.begin + TOGETHER_SECONDS) if span.end is None else span.end


def _attach(end: Span, runs: Sequence[Run]) -> bool:
    """Gives a scheduler's end without a start to the newest run of nodes that it can end."""
    earliest = float("-inf") if end.after_requeue is None else end.after_requeue
    for run in reversed(runs):
        if run.scheduler is None and earliest <= run.spans[0].begin <= end.begin:
            run.scheduler = end
            return True
    return False
