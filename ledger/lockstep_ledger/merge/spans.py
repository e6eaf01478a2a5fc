"""Spans: from a start to an end of a node, of the scheduler, or of a part of the allocation."""

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from lockstep_ledger.merge.allocation import Interval, step_intervals
from lockstep_ledger.merge.precedence import Order
from lockstep_records.events.event import Event

MAX_NODE_GPUS = 1024
"""More than any machine has, for what a machine says of itself."""
MAX_AGE_SECONDS = 400 * 86_400.0
"""How long an event may have waited on its node."""
MAX_SPARE_NODES = 1024
"""Nodes that may send events of a job beyond those that it has by its own word."""
MAX_SPANS = 100_000
"""As of 1,000 nodes that are requeued a hundred times: a record is derived from all spans."""
MAX_GPUS = 1_000_000
_STARTS = frozenset({"job_started", "attempt_started", "resources_allocated"})
# Processes begin before the event of their start is written, and a clock may be set meanwhile.
_SLACK_RATIO = 1.1
MAX_EARLY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Refused:
    """Why an event does not fit its job: the kind of reason and one sentence."""

    refusal: str
    sentence: str


def implausible(
    event: Event, nodes: Collection[str], num_nodes: int | None, num_spans: int
) -> Refused | None:
    """Why an event cannot be true, given nodes and spans of its job; None where it may be."""
    reason = _excess(event)
    if reason is None and event.kind in _STARTS and num_spans >= MAX_SPANS:
        reason = f"is one more start than the {MAX_SPANS} that a job may have; start a new job id"
    most_nodes = MAX_SPARE_NODES + (num_nodes or 0)
    if reason is None and event.source not in nodes and len(nodes) >= most_nodes:
        reason = f"is of one more node than the {most_nodes} that the job may have; state num_nodes"
    if reason is None:
        return None
    return Refused("implausible", f"{event.kind} of job {event.job_id} {reason}")


def most_gpu_seconds(held: float, early: float) -> float:
    """GPU-seconds that may be claimed by who held some, with a slack of some before."""
    return held * _SLACK_RATIO + early


def _excess(event: Event) -> str | None:
    if event.owner is not None:
        age_seconds = event.received_seconds - event.time
        if age_seconds > MAX_AGE_SECONDS:
            return f"is {age_seconds / 86_400.0:.0f} days old; set the clock of the node"
        gpus = 0.0 if event.kind.startswith("job_") else event.number("num_gpus") or 0.0
        if gpus > MAX_NODE_GPUS:
            return f"states {gpus:.0f} GPUs of one node; {MAX_NODE_GPUS} are possible"
    if event.kind == "goodput":
        ranks = event.number("num_ranks") or event.number("num_gpus") or MAX_NODE_GPUS
        seconds, most = sum(event.numbers("rank_seconds").values()), ranks * MAX_AGE_SECONDS
        if seconds > most:
            return f"states {seconds:.6g} rank_seconds; {ranks:.0f} ranks can have {most:.6g}"
    lost = event.number("lost_gpu_seconds") or 0.0
    if lost > MAX_GPUS * MAX_AGE_SECONDS:
        return f"states {lost:.6g} lost_gpu_seconds; no job has so many"
    return None


PART_PREFIX = "\n"
"""Begins the name under which a part of an allocation has its spans; no node has it in its own."""


class End(msgspec.Struct, omit_defaults=True):
    """What a ``job_finished`` states.

    Attributes:
        is_implied: whether it only follows from the pages of the ranks.
        is_vouched: whether its speaker may blame a node that is not of the run.
    """

    order: Order
    outcome: str
    failure_class: str | None = None
    cause: str | None = None
    reason: str | None = None
    cause_node: str | None = None
    rank: int | None = None
    is_implied: bool = False
    exit_code: int | None = None
    is_vouched: bool = True


class Span(msgspec.Struct, omit_defaults=True):
    """From a start to an end; the state of a node is its newest one.

    Attributes:
        opened, last: order of the first and of the newest event that is swept.
        begin: of a span with an unknown start, its end.
        end: None where nobody stated it.
        bound: begin of the next span of this node, which ends this one at the latest.
        ending: None also where a requeue ended it.
        strays: attempts of ends in it whose starts are not.
        after_requeue: of an end without a start: when the job went back to the queue before.
        heard, alive: newest event, and newest one that is no ``job_finished``.
        is_launched: whether ``job_started`` opened it.
        machine: node that it is on, of a part as it states it.
        gpus_started, gpus_reported: time and number, as ``attempt_started`` and ``goodput`` state
            them, where it changes.
        gap: end of the last attempt, until the next begins.
        assumed: GPUs of a node by which something was counted before it stated its own.
        held: GPU-seconds up to ``held_until``, by which claims in the windows are bounded.
        goodput: highest GPU-seconds of each attempt by state.
        early_seconds: before its begin that its reports may cover: none of the span before.
    """

    node: str
    number: int
    attempt: int
    begin: float
    opened: Order
    last: Order
    has_start: bool = True
    end: float | None = None
    bound: float | None = None
    ending: End | None = None
    end_received: float | None = None
    strays: list[int] = []
    after_requeue: float | None = None
    heard: float = 0.0
    alive: float = 0.0
    is_launched: bool = False
    starts: dict[int, float] = {}
    last_start: float = 0.0
    checkpoints: list[float] = []
    num_nodes: int | None = None
    gpus_started: list[tuple[float, float]] = []
    gpus_reported: list[tuple[float, float]] = []
    num_ranks: float | None = None
    gpu_model: str = ""
    machine: str = ""
    gap: float | None = None
    recovery_gpu_seconds: float = 0.0
    assumed: float | None = None
    held: float = 0.0
    held_until: float = 0.0
    goodput: dict[int, dict[str, float]] = {}
    early_seconds: float = MAX_EARLY_SECONDS
    counted: float = 0.0
    is_preempted: bool = False

    @property
    def is_inverted(self) -> bool:
        """Whether its end is before the start that it ends."""
        return self.end is not None and self.ending is not None and self.ending.order[0] < self.end

    @property
    def is_open(self) -> bool:
        """Whether an end may come that holds."""
        return self.end is None or self.is_inverted

    @property
    def stated(self) -> list[tuple[float, float]]:
        """Words on its GPUs of the best source that has any."""
        return self.gpus_started or self.gpus_reported

    def gpus(self, gpus_of_node: float | None) -> float:
        """GPUs of the node now, by the best source that states them; 0 where none does."""
        if self.stated:
            return self.stated[-1][1]
        return (self.num_ranks or 0.0) if gpus_of_node is None else gpus_of_node

    def intervals(self, end: float | None, gpus_of_node: float | None, model: str
                  ) -> list[Interval]:  # fmt: skip
        """What it holds up to an end; the first word on its GPUs holds from its begin."""
        if len(self.stated) > 1:
            words = [(*each, model) for each in self.stated]
            return list(step_intervals(self.begin, end, words))
        gpus = self.gpus(gpus_of_node)
        is_empty = not gpus or (end is not None and end <= self.begin)
        return [] if is_empty else [Interval(self.begin, end, gpus, model)]

    def is_of(self, frame: "Frame", before: "Span | None") -> bool:
        """Whether a sweep would give it in this frame too, by its GPUs, begin and restarts."""
        if self.assumed is not None and self.assumed != (
            (self.num_ranks or 0.0) if frame.gpus_of_node is None else frame.gpus_of_node
        ):
            return False
        zone = frame.zone(self.begin)
        if before is not None and before.is_open and frame.zone(before.begin) == zone:
            return self.is_launched
        restarts = (*self.starts.values(), self.last_start)
        return all(time < self.begin or frame.zone(time) == zone for time in restarts)


class Frame(NamedTuple):
    """What the spans of nodes take from the whole job.

    Attributes:
        gpus_of_node: of a node that does not state its own.
        zones: from when on what begins belongs to each of the scheduler's runs.
    """

    gpus_of_node: float | None = None
    zones: tuple[float, ...] = ()

    def zone(self, time: float) -> int:
        """Number of the scheduler's runs that have begun by a time."""
        return bisect_right(self.zones, time)


class WindowRow(NamedTuple):
    """What counts for an objective at a time."""

    time: float
    slo: str
    good: float
    total: float

    def times(self, factor: int) -> "WindowRow":
        """The row so many times; taken back by -1."""
        return self._replace(good=factor * self.good, total=factor * self.total)
