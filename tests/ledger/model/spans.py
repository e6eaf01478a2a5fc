"""Spans of nodes and of the scheduler: a sweep over starts and ends."""

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
    """Spans of a node in order.

    Args:
        facts: all events of the node in order.
        zones: when each of the scheduler's runs begins to claim what begins; a start of the ranks
            in a later run than the open span is no restart in place.
    """
    events = list(facts)
    spans: list[Span] = []
    is_open, spoken = False, 0.0
    for fact in events:
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
        spoken = fact.time if fact.kind in _SPEAKING else spoken
    _bind(spans)
    _assign(events, spans)
    return spans


def spans_of_scheduler(words: Iterable[Fact]) -> list[Span]:
    """The scheduler's spans in order; an end in the queue is a span without a start."""
    spans: list[Span] = []
    is_open, requeued = False, None
    for fact in words:
        if fact.kind == "job_started":
            spans.append(
                Span(node="", attempt=fact.attempt, begin=fact.time, opened_by=fact.key,
                     facts=[fact])
            )  # fmt: skip
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
