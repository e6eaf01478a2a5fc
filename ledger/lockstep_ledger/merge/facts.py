"""Statements of events on the job as a whole, in whatever order they come."""

import math
from typing import Any

import msgspec

from lockstep_ledger.merge.counted import Booked
from lockstep_ledger.merge.precedence import (
    NUMBERS,
    RUN_FIELDS,
    SCHEDULER,
    SETTLED,
    TEXTS,
    Order,
    order_of,
)
from lockstep_records.events.event import Event
from lockstep_records.text.host_lists import names_host

Disagreement = tuple[str, str, Any, Any]
"""Source, field, the value that does not hold, and the one that does."""
Claim = tuple[Order, Any]
UNVOUCHED = "unvouched"
"""Member of a stored event that a node says by itself, which senders cannot set; true where nobody
vouches for its words on money either."""
MONEY = frozenset({"project", "user", "price_per_gpu_hour", "currency", "num_gpus"})
"""Words that are shown and decide nothing where nobody vouches for them."""
_STATING = frozenset({"job_submitted", "job_started"})
_WHOLE = frozenset({"num_nodes", "world_size"})
_MAX_VALUES = 20


class Preemption(msgspec.Struct, array_like=True):
    """A scheduler's statement that it preempted the job."""

    time: float
    lost_gpu_seconds: float | None


class SettledRun(msgspec.Struct, array_like=True):
    """A run no longer waited for, by the ledger's clock; without a begin a wait in the queue."""

    run_begin: float | None
    time: float


class JobFacts(msgspec.Struct, omit_defaults=True):
    """What is known of a job beside the spans of its nodes.

    Attributes:
        ids: by each id of the job, sequence of its first event, and order of the scheduler's.
        instances: name of the Slurm that its number is of, by node and user, where not the job's.
        owner: user id of the first who sent events of it from a node; None where nobody has.
        named: first word of the scheduler on the user id, which holds over all others.
        holder: token that began it.
        wishes: aliases that its nodes state, and that count once the scheduler names its user.
        nodes: as it names them.
        claimants: nodes that speak of it by themselves.
        unvouched: claims on money by field that nobody vouches for.
        scheduler: its claims by field, the newest last; those of a run are all there.
        launchers: different claims by field, each with its first event.
        contradictions: source, field, value that does not hold, and the one that does.
        submitted: earliest submission by the scheduler and by others.
        requeue_waits: newest requeue by the scheduler without a start or end after it.
        heard, received: time of the newest event, and newest receipt of one.
        counts: of checkpoints and restores, by what became of them.
        checkpoint: newest durable one: time and step.
    """

    cluster: str
    job_id: str
    number: int
    ids: dict[str, tuple[int, Order | None]] = {}
    aliases: list[str] = []
    instances: dict[str, str] = {}
    owner: int | None = None
    named: tuple[Order, int] | None = None
    holder: str = ""
    wishes: list[str] = []
    is_scheduled: bool = False
    nodes: set[str] = set()
    claimants: set[str] = set()
    begun: Order | None = None
    unvouched: dict[str, list[Claim]] = {}
    scheduler: dict[str, list[Claim]] = {}
    launchers: dict[str, list[Claim]] = {}
    contradictions: list[Disagreement] = []
    submitted: list[float | None] = msgspec.field(default_factory=lambda: [None, None])
    requeued: float | None = None
    requeue_waits: float | None = None
    preemptions: list[Preemption] = []
    settlements: list[SettledRun] = []
    heard: float = 0.0
    received: float = 0.0
    counts: dict[str, int] = {}
    checkpoint: tuple[float, int | None] | None = None
    booked: Booked = msgspec.field(default_factory=Booked)

    def take(self, event: Event) -> None:
        """Adds what an event states."""
        if event.kind == SETTLED:
            begin = event.fields.get("run_begin", event.time)
            self.settlements.append(SettledRun(begin, event.time))
            self.settlements = sorted(self.settlements, key=lambda each: each.time)[-_MAX_VALUES:]
            return
        self.heard = max(self.heard, event.time)
        self.received = max(self.received, event.received_seconds)
        self.note_owner(event)
        if event.kind in _STATING:
            self._describe(event)
        self._contradict(event)
        if event.kind == "job_requeued":
            self.requeued = max(self.requeued or 0.0, event.time)
        elif event.kind == "job_preempted":
            lost = event.number("lost_gpu_seconds")
            self.preemptions.append(Preemption(event.time, lost))
            self.preemptions.sort(key=lambda each: each.time)

    def value(self, name: str) -> Any:
        """The scheduler's newest value, else the first of a launcher; None where nobody says."""
        if claims := self.scheduler.get(name):
            return claims[-1][1]
        claims = self.launchers.get(name)
        if not claims:
            return None
        order, value = min(claims)
        # The word with which nodes begin a job: a later one makes nobody wait for more of them.
        is_late = name == "num_nodes" and self.begun is not None and order > self.begun
        return None if is_late else value

    def scheduler_value(self, name: str, latest: float | None) -> Any:
        """The scheduler's newest value that is not later than a time; None where it has none."""
        claims = self.scheduler.get(name, ())
        stated = [value for (time, *_), value in claims if latest is None or time <= latest]
        return stated[-1] if stated else None

    def words_of_run(
        self, begin: float, end: float | None
    ) -> list[tuple[float, float, str]] | None:
        """Time, GPUs and model of the scheduler's words on a run; None where it has no GPUs."""
        last = math.inf if end is None else end

        def during(name: str) -> list[tuple[float, Any]]:
            stated = [(claim[0][0], claim[1]) for claim in self.scheduler.get(name, ())]
            before = [(begin, value) for time, value in stated if time <= begin][-1:]
            return before + [(time, value) for time, value in stated if begin < time < last]

        gpus, models = during("num_gpus"), during("gpu_model")
        if not gpus:
            return None
        times = sorted({begin, *(time for time, _ in (*gpus, *models))})
        return [(time, _value_at(gpus, time), _value_at(models, time) or "") for time in times]

    @property
    def gpus_of_node(self) -> float | None:
        """GPUs of a node where all have equally many; None where nobody says."""
        gpus, nodes = self.value("num_gpus"), self.value("num_nodes")
        return gpus / nodes if gpus is not None and nodes else None

    @property
    def voucher(self) -> str:
        """Who vouches for project and GPUs: the scheduler, a token's projects, or nobody."""
        if any(order is not None for _, order in self.ids.values()):
            return "scheduler"
        return "token" if self.claimants and self.launchers.get("project") else "nobody"

    @property
    def canonical_id(self) -> str:
        """The scheduler's id where one speaks of the job, else the one heard of first."""
        stated = [(order, name) for name, (_, order) in self.ids.items() if order is not None]
        return min(stated)[1] if stated else min((n, name) for name, (n, _) in self.ids.items())[1]

    def name(self, event: Event, sequence: int) -> None:
        """Notes the id under which an event comes; events of a joined job are stored without."""
        first, stated = self.ids.get(event.job_id, (sequence, None))
        if event.source == SCHEDULER:
            stated = order_of(event) if stated is None else min(stated, order_of(event))
        self.ids[event.job_id] = (min(first, sequence), stated)

    def _contradict(self, event: Event) -> None:
        stated = event.fields.get("disagrees")
        for name, value in stated.items() if isinstance(stated, dict) else ():
            source = "launcher" if event.node else "scheduler"
            held = event.time if name == "ended" else event.fields.get(name)
            found = {*map(tuple, self.contradictions), (source, name, _plain(value), _plain(held))}
            self.contradictions = sorted(found, key=str)[:_MAX_VALUES]

    def _describe(self, event: Event) -> None:
        is_scheduler = event.source == SCHEDULER
        self.note_uid(event)
        if UNVOUCHED in event.extra:
            self.begun = min(self.begun or order_of(event), order_of(event))
        if event.kind == "job_submitted":
            side = 0 if is_scheduler else 1
            before = self.submitted[side]
            time = event.time
            self.submitted[side] = time if before is None else min(before, time)
        for name in (*TEXTS, *NUMBERS):
            value: Any = event.text(name) if name in TEXTS else event.number(name)
            if value is None or value == "":
                continue
            value = int(value) if name in _WHOLE else value
            is_unvouched = name in MONEY and event.extra.get(UNVOUCHED)
            money = self.unvouched if is_unvouched else None
            self._state(name, (order_of(event), value), is_scheduler=is_scheduler, side=money)

    def note_uid(self, event: Event) -> bool:
        """Takes the scheduler's word on the user; whether somebody else was first."""
        is_word = event.kind in _STATING and event.source == SCHEDULER
        uid = event.count("uid") if is_word else None
        if uid is None:
            return False
        before, word = self.owner, (order_of(event), uid)
        self.named = word if self.named is None else min(self.named, word)
        self.owner = self.named[1]
        return before is not None and before != self.owner

    def note_owner(self, event: Event) -> None:
        """Takes the user of a job that has none yet; of a scheduler's job only it names one."""
        if self.owner is None and not (self.is_scheduled and UNVOUCHED in event.extra):
            self.owner = event.owner

    def note_place(self, event: Event) -> bool:
        """Takes the scheduler's word on the nodes; whether what some have said counts anew."""
        if event.source != SCHEDULER:
            if UNVOUCHED in event.extra:
                self.claimants.add(event.node or "")
            return False
        stated = event.fields.get("nodes")
        named = {name for name in stated if name} if isinstance(stated, list) else set()
        if self.is_scheduled and named <= self.nodes:
            return False
        before = {*filter(self.is_placed, self.claimants)}
        self.is_scheduled, self.nodes = True, self.nodes | named
        return before != {*filter(self.is_placed, self.claimants)}

    def is_placed(self, node: str) -> bool:
        """Whether a node is of the job: where a scheduler speaks of it, by its word alone."""
        names = {node, node.partition(".")[0]}
        return not self.is_scheduled or not names.isdisjoint(self.nodes) or any(
            "[" in hosts and names_host(hosts, name) for hosts in self.nodes for name in names
        )  # fmt: skip

    def weighs(self, event: Event) -> bool:
        """Whether an event counts: of the job's user, and from one of its nodes."""
        is_scheduler = event.source == SCHEDULER
        uid = event.count("uid") if is_scheduler and event.kind in _STATING else event.owner
        is_own = None in {uid, self.owner} or uid == self.owner
        return is_own and (UNVOUCHED not in event.extra or self.is_placed(event.node or ""))

    def _state(
        self, name: str, claim: Claim, *, is_scheduler: bool, side: dict[str, list[Claim]] | None
    ) -> None:
        if is_scheduler:
            claims = sorted([*self.scheduler.get(name, ()), claim])
            self.scheduler[name] = claims if name in RUN_FIELDS else claims[-1:]
            return
        claims = (self.launchers if side is None else side).setdefault(name, [])
        position = next((i for i, (_, value) in enumerate(claims) if value == claim[1]), None)
        if position is not None:
            claims[position] = min(claims[position], claim)
        elif len(claims) < _MAX_VALUES:
            claims.append(claim)


def _value_at(stated: list[tuple[float, Any]], time: float) -> Any:
    """The newest value by a time; the first one holds before it too, and None where none is."""
    values = [value for since, value in stated if since <= time] or [v for _, v in stated[:1]]
    return values[-1] if values else None


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float) else str(value)[:200]
