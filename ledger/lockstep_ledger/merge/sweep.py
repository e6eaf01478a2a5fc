"""A sweep over the starts and ends of a node, of the scheduler, or of a part: its spans.

The state after a sweep is a function of the set of events. What comes in order goes on from there;
from the span in which something comes late the events of its node are swept anew.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import takewhile

from lockstep_catalogue.vocabulary import GOODPUT_STATES
from lockstep_ledger.merge.facts import UNVOUCHED
from lockstep_ledger.merge.precedence import PAGES_SOURCE, SCHEDULER, SETTLED, order_of
from lockstep_ledger.merge.spans import PART_PREFIX, End, Frame, Span, WindowRow, most_gpu_seconds
from lockstep_outcomes.progress.goodput import PROGRESS_STATES
from lockstep_records.events.event import Event

_NODE_KINDS = frozenset({
    "job_started", "attempt_started", "attempt_ended", "job_finished", "goodput"
})  # fmt: skip
_SCHEDULER_KINDS = frozenset({"job_started", "job_finished", "job_requeued"})
_PART_KINDS = {"resources_allocated": "job_started", "resources_released": "job_finished"}
_STARTS = frozenset({"job_started", "attempt_started"})
_LAST_WORDS = frozenset({"job_finished", "job_preempted", "resources_released"})
"""Kinds that tell of no life after them."""
_MAX_REASON, _MAX_RANK = 500, 1 << 31
_NUM_CHECKPOINTS = 8


class Source:
    """The spans of a node, of the scheduler, or of a part; ``changed`` are to be saved."""

    def __init__(self, name: str, spans: Iterable[Span] = ()) -> None:
        self.name, self.spans = name, list(spans)
        self.requeue_waits: float | None = None
        self.changed: set[int] = set()

    @property
    def is_node(self) -> bool:
        """Whether it is a node: it may restart in place, and its clock may be set back."""
        return self.name[:1] not in {SCHEDULER, PART_PREFIX}

    def sweeps(self, event: Event) -> bool:
        """Whether the place of an event among the others matters."""
        if self.name == SCHEDULER:
            return event.kind in _SCHEDULER_KINDS
        return event.kind in (_PART_KINDS if self.name.startswith(PART_PREFIX) else _NODE_KINDS)

    def is_late(self, event: Event) -> bool:
        """Whether an event that is swept belongs before others that are there.

        With the first span all that was heard of the node is placed; so it is with a new span
        that begins before the newest event.
        """
        if not self.spans or order_of(event) <= tuple(self.spans[-1].last):
            return True
        if event.kind in _STARTS and any(event.attempt in span.strays for span in self.spans):
            return True
        return event.kind in _STARTS and event.time <= self.spans[-1].heard

    def is_of(self, frame: Frame) -> bool:
        """Whether a sweep would give the same spans in this frame, which only nodes depend on."""
        if not self.is_node:
            return True
        befores = (None, *self.spans)
        return all(s.is_of(frame, before) for s, before in zip(self.spans, befores, strict=False))

    def list_before(self, event: Event) -> list[Span]:
        """Spans of a node that neither an event nor anything after it can change."""
        if not self.is_node or any(span.strays or span.is_inverted for span in self.spans):
            return []
        return list(
            takewhile(
                lambda span: tuple(span.last) < order_of(event) and span.heard < event.time,
                self.spans,
            )
        )

    def take(self, event: Event, frame: Frame) -> Iterator[WindowRow]:
        """Adds an event, in order if its place matters; what it adds to the windows."""
        if not self.sweeps(event):
            self.note_event(event)
            return
        kind = _PART_KINDS.get(event.kind, event.kind)
        going = next((span for span in self.spans[-1:] if span.is_open), None)
        if kind in _STARTS:
            if going is None or self._begins_anew(kind, event.time, going, frame):
                self._open(event)
        elif kind == "job_finished":
            self._end(event, going)
        elif kind == "job_requeued":
            if going is not None:
                going.end, going.end_received = event.time, event.received_seconds
            self.requeue_waits = event.time
        self.note_event(event)
        if self.spans:
            span = self.spans[-1]
            span.last = order_of(event)
            if self.name != SCHEDULER:
                before = span.gpus(frame.gpus_of_node)
                has_word = bool(span.gpus_started or span.gpus_reported)
                note(span, event, before)
                gpus = span.gpus(frame.gpus_of_node)
                yield from count(span, event, before if has_word else gpus, gpus)

    def _begins_anew(self, kind: str, time: float, going: Span, frame: Frame) -> bool:
        """Whether a start is neither a restart in place nor said again by a scheduler."""
        if kind == "attempt_started":
            return frame.zone(going.begin) != frame.zone(time)
        return self.name != SCHEDULER or going.begin != time

    def _open(self, event: Event, *, has_start: bool = True) -> Span:
        span = Span(
            node=self.name, number=len(self.spans), attempt=event.attempt, opened=order_of(event),
            last=order_of(event), begin=event.time, has_start=has_start,
            gpu_model=event.text("gpu_model"), is_launched=event.kind == "job_started",
            machine=event.node or event.text("node"),
            held_until=event.time,
        )  # fmt: skip
        if event.kind == "job_started":
            span.num_nodes = event.count("num_nodes")
            span.num_ranks = event.number("nproc_per_node")
        if self.spans:
            gap = span.begin - self.spans[-1].last[0]
            span.early_seconds = min(span.early_seconds, gap)
            self.spans[-1].bound = span.begin
            self.changed.add(span.number - 1)
        self.spans.append(span)
        self.requeue_waits = None
        return span

    def _end(self, event: Event, going: Span | None) -> None:
        """Ends the span that goes on; without one an end is of a start that nobody stated yet."""
        if going is None and self.spans and self.requeue_waits is None:
            _note_stray(self.spans[-1], event)
            return
        requeued = self.requeue_waits
        span = going or self._open(event, has_start=False)
        _close(span, event)
        span.after_requeue = requeued

    def note_event(self, event: Event) -> None:
        """Notes what the newest span that has begun by an event knows from it."""
        order = order_of(event)
        span = next((s for s in reversed(self.spans) if tuple(s.opened) <= order), None)
        if span is None or event.kind == SETTLED:
            return
        self.changed.add(span.number)
        span.heard = max(span.heard, event.time)
        if event.kind not in _LAST_WORDS:
            span.alive = max(span.alive, event.time)
        if event.kind == "checkpoint_durable":
            times = {*span.checkpoints, event.time}
            span.checkpoints = sorted(times)[-_NUM_CHECKPOINTS:]
        if event.kind in {"attempt_ended", "job_finished"}:
            span.is_preempted |= event.fields.get("outcome") == "preempted"


def sweep(
    name: str, events: Iterable[Event], frame: Frame, prefix: Sequence[Span] = ()
) -> tuple[Source, list[WindowRow]]:
    """The spans of all events of a source, and what they add to the windows.

    With ``prefix``, spans that are not changed, the events are those from its last span's newest
    one on.
    """
    newest = tuple(prefix[-1].last) if prefix else ()
    ordered = sorted(events, key=order_of)
    ordered = [
        e for e in ordered if not prefix or order_of(e) > newest or e.kind not in _NODE_KINDS
    ]
    return _sweep(_resume(name, prefix), ordered, frame)


def _resume(name: str, prefix: Sequence[Span]) -> Source:
    source = Source(name, prefix)
    if prefix:
        source.spans[-1] = deepcopy(prefix[-1])
        source.spans[-1].bound = None
        source.changed.add(len(prefix) - 1)
    return source


def _sweep(source: Source, ordered: list[Event], frame: Frame) -> tuple[Source, list[WindowRow]]:
    rows: list[WindowRow] = []
    early = _early_ends(source, ordered)
    for is_swept in (True, False):
        for event in ordered:
            if source.sweeps(event) != is_swept:
                continue
            end = early.get(event.attempt)
            if end is not None and event.kind == "job_finished":
                source.note_event(event)
                continue
            rows += source.take(event, frame)
            if end is not None and event.kind in _STARTS:
                _close(source.spans[-1], early.pop(event.attempt), event.time)
    return source, rows


def _note_stray(span: Span, event: Event) -> None:
    """Notes an end in a span whose start is not in it: that start may come yet."""
    if event.attempt not in span.starts:
        span.strays = sorted({*span.strays, event.attempt})


def _early_ends(source: Source, ordered: Sequence[Event]) -> dict[int, Event]:
    """By attempt, the end of a node before its start, where a clock was set back: it ends that."""
    begun = {attempt for span in source.spans for attempt in span.starts}
    found: dict[int, Event] = {}
    for event in ordered if source.is_node else ():
        if event.kind == "job_finished" and event.attempt not in begun:
            found[event.attempt] = event
        elif event.kind in _STARTS:
            begun.add(event.attempt)
    return {attempt: end for attempt, end in found.items() if attempt in begun}


def _close(span: Span, event: Event, time: float | None = None) -> None:
    """Ends a span, an early end at the time of its own start."""
    reason, ranks = event.fields.get("reason"), event.fields.get("cause_ranks")
    rank = ranks[0] if isinstance(ranks, list) and ranks else None
    status = event.fields.get("exit_code")
    span.end = event.time if time is None else time
    span.end_received = event.received_seconds
    _note_stray(span, event)
    span.ending = End(
        order=order_of(event),
        outcome=event.text("outcome") or "unknown",
        failure_class=event.text("failure_class") or None,
        cause=event.text("cause") or None,
        reason=reason[:_MAX_REASON] if isinstance(reason, str) else None,
        cause_node=event.text("cause_node") or event.node or None,
        is_vouched=UNVOUCHED not in event.extra,
        rank=rank if type(rank) is int and abs(rank) < _MAX_RANK else None,
        is_implied=event.text("source") == PAGES_SOURCE,
        exit_code=status if type(status) is int else None,
    )


def note(span: Span, event: Event, before: float) -> None:
    """Notes starts of attempts and words on the GPUs, of which it had a number before."""
    if event.kind in _STARTS:
        earliest = span.starts.get(event.attempt, event.time)
        span.starts[event.attempt] = min(earliest, event.time)
        span.last_start = event.time
    span.held += before * max(0.0, event.time - span.held_until)
    span.held_until = max(span.held_until, event.time)
    gpus = event.number("num_gpus")
    if gpus is None or event.kind not in {"attempt_started", "resources_allocated", "goodput"}:
        return
    is_report = event.kind == "goodput"
    stated = span.gpus_reported if is_report else span.gpus_started
    if not stated and not (is_report and span.gpus_started):
        # The first word of the best source holds from the begin.
        span.held = gpus * (span.held_until - span.begin)
    if not stated or stated[-1][1] != gpus:
        stated.append((event.time, gpus))


def count(span: Span, event: Event, before: float, gpus: float) -> Iterator[WindowRow]:
    """Adds recoveries between attempts, and what totals of an attempt have grown by.

    Totals are seconds of ranks; times GPUs over ranks they are GPU-seconds. A total that fell,
    because the page was written anew, adds nothing until it has passed its old height.
    """
    if event.kind == "attempt_ended":
        span.gap = event.time
    elif event.kind == "attempt_started" and span.gap is not None:
        seconds, span.gap = (event.time - span.gap) * before, None
        span.recovery_gpu_seconds += seconds
        _assume(span, gpus)
        yield from _rows(event.time, {"recovery": seconds})
    elif event.kind == "goodput":
        ranks = event.number("num_ranks")
        scale = 1.0 if ranks is None else gpus / ranks if ranks else 0.0
        _assume(span, gpus)
        highest, grown = span.goodput.setdefault(event.attempt, {}), {}
        for state, seconds in event.numbers("rank_seconds").items():
            growth = seconds * scale - highest.get(state, 0.0)
            if growth > 0 and state in GOODPUT_STATES:
                highest[state], grown[state] = seconds * scale, growth
        # No claim counts more in the windows than the GPUs can have had by then.
        total = math.fsum(grown.values())
        most = most_gpu_seconds(span.held, span.early_seconds * gpus) - span.counted
        share = min(1.0, max(0.0, most) / total) if total else 0.0
        span.counted += total * share
        yield from _rows(event.time, {s: value * share for s, value in grown.items()})


def _assume(span: Span, gpus: float) -> None:
    """Notes that something is counted by GPUs that the node does not state itself."""
    if not (span.gpus_started or span.gpus_reported):
        span.assumed = gpus


def _rows(time: float, grown: dict[str, float]) -> Iterator[WindowRow]:
    """Rows of what grew; unreported time does not count as bad: telemetry has its own objective."""
    total = math.fsum(seconds for state, seconds in grown.items() if state != "unknown")
    if total > 0:
        moving = math.fsum(grown.get(state, 0.0) for state in PROGRESS_STATES)
        yield WindowRow(time, "goodput", grown.get("productive", 0.0), total)
        yield WindowRow(time, "ettr", moving, total)
