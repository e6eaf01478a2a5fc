"""Ways in which the events of a history reach a ledger, with moments at which it settles."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice, permutations
from typing import Any, Literal, get_args

from lockstep_ledger.ingest.document import MAX_EVENTS

from .arrivals import Arrival
from .histories import CLUSTER
from .truth import Message

Mode = Literal[
    "in_order", "late", "shuffled", "shuffled_nodes", "doubled", "cut_off", "slurm_first",
    "interleaved", "slurm_last",
]  # fmt: skip
MODES: tuple[Mode, ...] = get_args(Mode)
_MAX_BATCH = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Deliver:
    """A delivery that reaches the ledger at a moment of its clock."""

    batch: dict[str, Any]
    received: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Settle:
    """The ledger looks what it need not wait for any longer."""

    now: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """The ledger dies and starts again, or its database does."""

    now: float


Step = Deliver | Settle | Kill
_Timed = tuple[float, Message]


def deliver(history: Sequence[Message], mode: Mode, seed: int, *, kills: int = 0) -> list[Step]:
    """Steps that bring every event of a history to a ledger, in a way that the seed decides."""
    rng = random.Random(f"{seed} {mode}")
    timed = _time(list(history), mode, rng)
    steps = list(_batch(timed, rng))
    return _interrupt(steps, rng, kills)


def arrivals_of(steps: Sequence[Step]) -> list[Arrival]:
    """Every event of the deliveries, as the model takes them."""
    return [
        Arrival(
            event={"cluster": step.batch["cluster"], "node": step.batch["node"], **event},
            received=step.received,
            sent=step.batch.get("sent"),
        )
        for step in steps
        if isinstance(step, Deliver)
        for event in step.batch["events"]
    ]


def last_moment(steps: Sequence[Step]) -> float:
    return max(step.received if isinstance(step, Deliver) else step.now for step in steps)


def all_orders(messages: Sequence[Message], every: int) -> list[Step]:
    """Every n-th permutation of a job's messages, each as a job of its own, all in one ledger.

    Ids of events, jobs and aliases get the number of the order; times are the same in all. The
    first messages of all orders come together, then the second ones, and so on.
    """
    end = max(message.true_time for message in messages) + 10.0
    orders = enumerate(islice(permutations(messages), 0, None, every))
    renamed = [[_rename(message, number).event for message in order] for number, order in orders]
    origin = {"version": 1, "cluster": CLUSTER, "node": ""}
    return [
        Deliver(
            batch={**origin, "events": events[first : first + MAX_EVENTS]}, received=end + position
        )
        for position, events in enumerate(zip(*renamed, strict=True))
        for first in range(0, len(events), MAX_EVENTS)
    ]


def _rename(message: Message, number: int) -> Message:
    event, fields = message.event, dict(message.event["fields"])
    if "aliases" in fields:
        fields["aliases"] = [f"{alias}-{number}" for alias in fields["aliases"]]
    ids = {name: f"{event[name]}-{number}" for name in ("id", "job_id")}
    return replace(message, event={**event, **ids, "fields": fields})


def _time(messages: list[Message], mode: Mode, rng: random.Random) -> list[_Timed]:
    """When each message is received, in that order."""
    if mode in {"in_order", "doubled"}:
        timed = [(message.true_time, message) for message in messages]
        return _double(timed, rng) if mode == "doubled" else timed
    if mode == "late":
        return _sort((m.true_time + _eighths(rng, 0, 900), m) for m in messages)
    if mode == "cut_off":
        return _cut_off(messages, rng)
    end = messages[-1].true_time + 100.0
    if mode == "shuffled":
        rng.shuffle(messages)
    elif mode == "shuffled_nodes":
        messages = _shuffle_inside(messages, rng)
    elif mode == "interleaved":
        messages = _interleave(messages, rng)
    else:
        # The sort is stable: each sender's messages stay in order.
        is_slurm_first = mode == "slurm_first"
        messages.sort(key=lambda m: (bool(m.event["node"]) == is_slurm_first, m.sender))
    return [(end + number / 8, message) for number, message in enumerate(messages)]


def _eighths(rng: random.Random, least: float, most: float) -> float:
    return round(rng.uniform(least, most) * 8) / 8


def _sort(timed: Iterator[_Timed]) -> list[_Timed]:
    return sorted(timed, key=lambda each: each[0])


def _double(timed: list[_Timed], rng: random.Random) -> list[_Timed]:
    again = [(time + _eighths(rng, 0, 5000), m) for time, m in timed if rng.random() < 0.4]
    return _sort(iter([*timed, *again]))


def _cut_off(messages: list[Message], rng: random.Random) -> list[_Timed]:
    """One or two senders are away for longer than any wait; what they have comes afterwards."""
    senders = sorted({message.sender for message in messages})
    away = set(rng.sample(senders, k=min(len(senders), rng.choice([1, 1, 2]))))
    begin = rng.choice(messages).true_time
    back = begin + rng.choice([1200.0, 30_000.0, 200_000.0])
    return _sort(
        (max(m.true_time, back) if m.sender in away and m.true_time >= begin else m.true_time, m)
        for m in messages
    )


def _shuffle_inside(messages: list[Message], rng: random.Random) -> list[Message]:
    """Each sender's messages in a random order, sender after sender."""
    by_sender = sorted(messages, key=lambda message: message.sender)
    groups = [list(own) for _, own in groupby(by_sender, key=lambda message: message.sender)]
    rng.shuffle(groups)
    for group in groups:
        rng.shuffle(group)
    return [message for group in groups for message in group]


def _interleave(messages: list[Message], rng: random.Random) -> list[Message]:
    """Each sender's messages in order, the senders mixed at random."""
    by_sender: dict[str, list[Message]] = {}
    for message in messages:
        by_sender.setdefault(message.sender, []).append(message)
    order = [message.sender for message in messages]
    rng.shuffle(order)
    return [by_sender[sender].pop(0) for sender in order]


def _batch(timed: Sequence[_Timed], rng: random.Random) -> Iterator[Deliver]:
    """Deliveries of consecutive messages of one sender."""
    pending: list[_Timed] = []
    for item in timed:
        is_full = len(pending) >= rng.choice([1, 4, _MAX_BATCH])
        if pending and (is_full or pending[0][1].sender != item[1].sender):
            yield _flush(pending)
            pending = []
        pending.append(item)
    if pending:
        yield _flush(pending)


def _flush(pending: Sequence[_Timed]) -> Deliver:
    received = pending[-1][0]
    return Deliver(
        batch=_batch_of([message for _, message in pending], received), received=received
    )


def _batch_of(messages: Sequence[Message], received: float) -> dict[str, Any]:
    first = messages[0]
    # A feed of a scheduler has no clock of its own to state.
    sent = {"sent": received + first.clock_offset} if first.event["node"] else {}
    return {
        "version": 1,
        "cluster": CLUSTER,
        "node": first.event["node"],
        **sent,
        "events": [_without_origin(message.event) for message in messages],
    }


def _without_origin(event: Any) -> dict[str, Any]:
    """The event as a delivery holds it: node and cluster stand once, beside the events."""
    return {name: value for name, value in event.items() if name not in {"node", "cluster"}}


def _interrupt(steps: Sequence[Step], rng: random.Random, kills: int) -> list[Step]:
    """The steps, with moments of settling and deaths in between."""
    clocks = [step.received if isinstance(step, Deliver) else step.now for step in steps]
    extra: list[tuple[int, Step]] = []
    for _ in range(rng.randint(0, 4)):
        index = rng.randrange(len(steps))
        following = clocks[index + 1] if index + 1 < len(clocks) else clocks[index] + 50_000.0
        now = clocks[index] + _eighths(rng, 0, following - clocks[index])
        extra.append((index, Settle(now=min(now, following))))
    for _ in range(kills):
        index = rng.randrange(len(steps))
        extra.append((index, Kill(now=clocks[index])))
    found: list[Step] = []
    for index, step in enumerate(steps):
        found.append(step)
        own = [each for position, each in extra if position == index]
        found += sorted(own, key=lambda each: getattr(each, "now", 0.0))
    return found
