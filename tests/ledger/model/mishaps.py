"""What goes wrong as a history is told: lost starts, late words, false claims, reused ids."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .truth import Message, TrueJob, tick

Mishap = Callable[[random.Random, list[Message]], list[Message]]
"""Changes all messages of a job."""
_STARTS = ("job_started", "attempt_started")


def _edit(message: Message, *, fields: Mapping[str, Any] | None = None, **event: Any) -> Message:
    stated = {**message.event["fields"], **(fields or {})}
    return replace(message, event={**message.event, **event, "fields": stated})


def _again(message: Message, seconds: float, **changes: Any) -> Message:
    """A further event like another one, some seconds later."""
    time = message.event["time"] + seconds
    copy = replace(message, true_time=message.true_time + seconds)
    return _edit(copy, id=f"{message.event['id']}-{seconds}", time=time, **changes)


def _without(message: Message, *names: str) -> Message:
    fields = {k: v for k, v in message.event["fields"].items() if k not in names}
    return replace(message, event={**message.event, "fields": fields})


def _of(messages: Iterable[Message], *kinds: str, is_node: bool) -> list[Message]:
    return [m for m in messages if m.event["kind"] in kinds and bool(m.event["node"]) == is_node]


def lose_starts(rng: random.Random, messages: list[Message]) -> list[Message]:
    """No start of a node arrives in an attempt that joins no ids."""
    starts = [m for m in _of(messages, *_STARTS, is_node=True) if not _joins(m)]
    if not starts:
        return messages
    lost = rng.choice(starts)
    key = (lost.sender, lost.event["attempt"])
    return [m for m in messages if m not in starts or (m.sender, m.event["attempt"]) != key]


def lose_scheduler_start(rng: random.Random, messages: list[Message]) -> list[Message]:
    """A start in the scheduler's words does not arrive."""
    starts = _of(messages, "job_started", is_node=False)
    if not starts or not _of(messages, "job_submitted", is_node=False):
        return messages
    lost = rng.choice(starts)
    return [m for m in messages if m is not lost]


def set_clock_back(rng: random.Random, messages: list[Message]) -> list[Message]:
    """A clock is set back, so that an end of a node lies before the start."""
    ends = _of(messages, "job_finished", is_node=True)
    if not ends:
        return messages
    last = rng.choice(ends)
    starts = [m for m in _of(messages, *_STARTS, is_node=True) if m.sender == last.sender]
    first = min((m.event["time"] for m in starts), default=last.event["time"])
    early = _edit(last, time=tick(first - rng.uniform(1, 3000)))
    return [early if m is last else m for m in messages]


def claim_too_much(rng: random.Random, messages: list[Message]) -> list[Message]:
    """Reports of a node hold several times of what it had."""
    reports = _of(messages, "goodput", is_node=True)
    node = rng.choice(reports).sender if reports else ""
    factor = rng.choice([1.5, 3, 20])
    return [
        _edit(m, fields={"rank_seconds": _scale(m.event["fields"]["rank_seconds"], factor)})
        if m in reports and m.sender == node
        else m
        for m in messages
    ]


def end_twice(rng: random.Random, messages: list[Message]) -> list[Message]:
    """The scheduler states an end, or a requeue, again a little later."""
    ends = _of(messages, "job_finished", "job_requeued", is_node=False)
    return [*messages, _again(rng.choice(ends), 1.0)] if ends else messages


def state_loss(rng: random.Random, messages: list[Message]) -> list[Message]:
    """The scheduler knows what a preemption cost."""
    loss = {"lost_gpu_seconds": tick(rng.uniform(0, 100))}
    is_preemption = _of(messages, "job_preempted", is_node=False)
    return [_edit(m, fields=loss) if m in is_preemption else m for m in messages]


def add_incident(rng: random.Random, messages: list[Message]) -> list[Message]:
    """A node, perhaps none of the job's, has an incident before an end."""
    ends = _of(messages, "job_finished", is_node=True)
    if not ends:
        return messages
    fields = {"sign": rng.choice(["xid", "node_lost", "link_down"]), "detail": "79 lost"}
    seconds = -rng.choice([10.0, 1799.0, 2000.0, 9000.0])
    source = rng.choice(ends)
    event = _without(_again(source, seconds, kind="node_event"), *source.event["fields"])
    if rng.random() < 0.5:
        event = replace(_edit(event, node="bystander"), sender="bystander", clock_offset=0.0)
        event = _edit(event, time=event.true_time)
    return [*messages, _edit(event, fields=fields)]


def hide_gpus(rng: random.Random, messages: list[Message]) -> list[Message]:
    """Nodes do not say how many GPUs they have; the job says it, its ranks do, or nobody does."""
    hidden = rng.choice([("num_gpus",), ("num_gpus", "num_nodes"), ("num_gpus", "nproc_per_node")])
    own = _of(messages, "attempt_started", "goodput", is_node=True)
    words = _of(messages, "job_started", is_node=True) if len(hidden) > 1 else []
    return [_without(m, *hidden) if m in own or m in words else m for m in messages]


def count_from_zero(rng: random.Random, messages: list[Message]) -> list[Message]:
    """A node under plain torchrun numbers its attempts by itself."""
    nodes = sorted({m.sender for m in messages if m.event["node"]})
    node = rng.choice(nodes) if nodes else ""
    lowest = min((m.event["attempt"] for m in messages if m.sender == node), default=0)
    step = max(1, lowest)
    return [
        _edit(m, attempt=max(0, m.event["attempt"] - step)) if m.sender == node else m
        for m in messages
    ]


def change_words(rng: random.Random, messages: list[Message]) -> list[Message]:
    """The scheduler changes queue, class and price while the job is there."""
    words = _of(messages, "job_started", "job_submitted", is_node=False)
    if not words:
        return messages
    changed = {"queue": "night", "job_class": "batch", "price_per_gpu_hour": 9.0, "currency": "CHF"}
    later = _again(rng.choice(words), 50.0, kind="job_submitted")
    return [*messages, _edit(later, fields=changed)]


def resize(rng: random.Random, messages: list[Message]) -> list[Message]:
    """The scheduler grants a run more nodes or fewer while it goes on."""
    sizes = [
        m for m in _of(messages, "job_started", is_node=False) if "num_gpus" in m.event["fields"]
    ]
    if not sizes:
        return messages
    run, factor = rng.choice(sizes), rng.choice([2, 3])
    fields = {name: run.event["fields"][name] * factor for name in ("num_nodes", "num_gpus")}
    larger = _again(run, rng.choice([20.0, 200.0, 2000.0]), kind="job_submitted")
    smaller = _again(run, rng.choice([30.0, 400.0, 4000.0]), kind="job_submitted")
    return [*messages, _edit(larger, fields=fields), smaller]


def lose_a_gpu(rng: random.Random, messages: list[Message]) -> list[Message]:
    """A node starts again with one GPU less."""
    starts = _of(messages, "attempt_started", is_node=True)
    node = rng.choice(starts).sender if starts else ""
    later = sorted((m for m in starts if m.sender == node), key=lambda m: m.true_time)[1:]
    return [
        _edit(m, fields={"num_gpus": m.event["fields"]["num_gpus"] - 1})
        if m in later and m.event["fields"].get("num_gpus", 0) > 1
        else m
        for m in messages
    ]


def declare_no_gpus(_rng: random.Random, messages: list[Message]) -> list[Message]:
    """The scheduler states zero GPUs."""
    words = _of(messages, "job_started", "job_submitted", is_node=False)
    return [_edit(m, fields={"num_gpus": 0}) if m in words else m for m in messages]


def report_late(rng: random.Random, messages: list[Message]) -> list[Message]:
    """An agent reports goodput and checkpoints after its node has ended."""
    late = _of(messages, "goodput", "checkpoint_durable", is_node=True)
    return [*messages, _again(rng.choice(late), rng.choice([2000.0, 9000.0]))] if late else messages


def break_silence(rng: random.Random, messages: list[Message]) -> list[Message]:
    """A node that was silent for longer than any wait gives a sign of life."""
    starts = _of(messages, "attempt_started", is_node=True)
    if not starts:
        return messages
    report = {"rank_seconds": {"productive": 10.0}, "num_ranks": 1}
    source = rng.choice(starts)
    again = _again(source, rng.choice([30_000.0, 90_000.0]), kind="goodput", fields=report)
    return [*messages, again]


def release_early(rng: random.Random, messages: list[Message]) -> list[Message]:
    """A pod goes before the others, and another one takes its place."""
    parts = _of(messages, "resources_allocated", is_node=False)
    if not parts:
        return messages
    part = rng.choice(parts)
    gone = _again(part, 20.0, kind="resources_released")
    new = {"part": f"{part.event['fields']['part']}-again"}
    return [*messages, gone, _again(part, 30.0, fields=new)]


def hear_requeues_only(_rng: random.Random, messages: list[Message]) -> list[Message]:
    """Of all that the scheduler says only its requeues and preemptions arrive."""
    rare = ("job_requeued", "job_preempted")
    return [m for m in messages if m.event["node"] or m.event["kind"] in rare]


def leave_ends_to_pages(rng: random.Random, messages: list[Message]) -> list[Message]:
    """The agent takes the ends of some nodes from the pages of their ranks, which say done."""
    ends = _of(messages, "attempt_ended", "job_finished", is_node=True)
    nodes = {node for node in sorted({m.sender for m in ends}) if rng.random() < 0.6}
    implied = {"outcome": "succeeded", "cause": "success", "source": "pages"}
    changed = {
        m.event["id"]: _edit(_without(m, "failure_class"), fields=implied)
        for m in ends
        if m.sender in nodes
    }
    return [changed.get(m.event["id"], m) for m in messages]


MISHAPS: tuple[Mishap, ...] = (
    lose_starts, lose_scheduler_start, claim_too_much, end_twice, state_loss, add_incident,
    hide_gpus, count_from_zero, change_words, declare_no_gpus, report_late, break_silence,
    release_early, hear_requeues_only, leave_ends_to_pages, set_clock_back, resize, lose_a_gpu,
)  # fmt: skip


def reuse_id(messages: Sequence[Message], old: str, new: str, seconds: float) -> list[Message]:
    """A job's messages under the id of another one, so much later."""
    return [
        replace(
            _edit(m, job_id=new if m.event["job_id"] == old else m.event["job_id"],
                  time=m.event["time"] + seconds),
            true_time=m.true_time + seconds,
        )
        for m in messages
    ]  # fmt: skip


def move_to_slurm(messages: Sequence[Message], slurm: str, old: str, number: str) -> list[Message]:
    """A Slurm job's messages under a number of a Slurm, which every start and word of it names."""
    aliases = {"aliases": [f"slurm:{slurm}:{number}"]}
    moved = []
    for message in messages:
        is_start = message.event["kind"] == "job_started"
        fields = aliases if not message.event["node"] or is_start else {}
        job_id = number if message.event["job_id"] == old else message.event["job_id"]
        moved.append(_edit(message, job_id=job_id, fields=fields))
    return moved


def names_its_slurm(messages: Sequence[Message]) -> bool:
    """Whether every node has a start that can name its Slurm."""
    nodes = {m.sender for m in messages if m.event["node"]}
    return nodes == {m.sender for m in _of(messages, "job_started", is_node=True)}


def uses_number(messages: Sequence[Message], job: TrueJob) -> bool:
    """Whether launchers use the scheduler's number as their id."""
    return any(m.event["node"] and m.event["job_id"] == job.job_id for m in messages)


def _joins(message: Message) -> bool:
    return "aliases" in message.event["fields"]


def _scale(seconds: Mapping[str, float], factor: float) -> dict[str, float]:
    return {state: value * factor for state, value in seconds.items()}
