"""Attacks by events: each goes by the spool of the agent and over HTTP with a launcher's token."""

import contextlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tenants.table import DELIVERY_SECONDS, Attack, Ground, attack, register

if TYPE_CHECKING:
    from tenants.arena import Arena

_FAILED = {"outcome": "failed", "failure_class": "infra", "cause": "xid", "exit_code": 1}
_DIGITS = "9" * 400
_DEPTH = 50_000
_INVENTED = 1000
_SIGNS = ("xid", "node_lost", "node_failure", "gpu_fault", "host_oom", "ib_error", "io_error")
Lines = Callable[[Ground], list[str | bytes]]


def _event(kind: str, fields: dict[str, Any], **changes: Any) -> Lines:
    return lambda ground: [json.dumps(ground.event(kind, fields=fields, **changes))]


def _befell(detail: str) -> Lines:
    """A node event of each sign before an end that names no cause."""
    end = {"outcome": "failed", "failure_class": "unknown", "cause": "collective_timeout"}

    def lines(ground: Ground) -> list[str | bytes]:
        now = ground.event()["time"]
        started = ground.event("job_started", fields={"num_nodes": 1}, time=now - 60)
        signs = [
            ground.event(
                id=f"{ground.name}-{sign}", fields={"sign": sign, "detail": detail}, time=now - 30
            )
            for sign in _SIGNS
        ]
        events = [started, *signs, ground.event("job_finished", fields=end)]
        return [json.dumps(event) for event in events]

    return lines


def _raw(fields: str, kind: str = "job_started") -> Lines:
    """An event whose fields are JSON text that Python's own writer would not produce."""
    return lambda ground: [json.dumps(ground.event(kind, fields="@")).replace('"@"', fields)]


def _many(ground: Ground) -> list[str | bytes]:
    return [json.dumps(ground.event(id=f"many-{number}")) for number in range(5000)]


def _known_ids(ground: Ground) -> list[str | bytes]:
    """Ids that the neighbour's next events will have."""
    return [json.dumps(ground.event(id=f"victim-{number}")) for number in range(20)]


_EVENTS: dict[str, tuple[str, Lines]] = {
    "end_of_a_neighbour": (
        "the end of the neighbour's job as failed, infra",
        _event("job_finished", _FAILED, job_id="victim", node="node-7", cluster="east"),
    ),
    "end_on_another_node": (
        "the end of the neighbour's job on a node of the attacker's choice",
        _event("job_finished", _FAILED, job_id="victim", node="node-8"),
    ),
    "settled_by_a_stranger": (
        "an end of the neighbour's job that only the ledger itself may write",
        _event("ledger_settled", _FAILED, job_id="victim"),
    ),
    "price_of_a_neighbour": (
        "a start of the neighbour's job with the price 1e24",
        _event("job_started", {"num_gpus": 4, "price_per_gpu_hour": 1e24}, job_id="victim"),
    ),
    "checkpoint_of_a_neighbour": (
        "a checkpoint of the neighbour's job at step 10^9",
        _event("checkpoint_durable", {"step": 10**9}, job_id="victim"),
    ),
    "goodput_of_a_neighbour": (
        "1e24 GPU-seconds of the neighbour's job",
        _event("goodput", {"rank_seconds": {"productive": 1e24}}, job_id="victim"),
    ),
    "another_cluster": ("a job in the cluster west", _event("job_started", {}, cluster="west")),
    "invented_names": (
        f"{_INVENTED:,} jobs with cluster, project and queue of their own",
        lambda ground: [
            json.dumps(
                ground.event(
                    "job_started",
                    id=f"{ground.name}-{number}",
                    cluster=f"c{number}",
                    fields={"project": f"p{number}", "queue": f"q{number}"},
                )
            )
            for number in range(_INVENTED)
        ],
    ),
    "surrogate": (
        "a lone surrogate as reason",
        _event("job_finished", {**_FAILED, "reason": "\ud800"}),
    ),
    "surrogate_in_id": (
        "a lone surrogate as id and node",
        _event("job_started", {}, id="\ud800", node="\udfff"),
    ),
    "nodes_without_end": ("10^9 nodes", _event("job_started", {"num_nodes": 10**9})),
    "end_of_many_nodes": (
        "start with 10^9 nodes, and its end",
        lambda ground: [
            json.dumps(ground.event("job_started", fields={"num_nodes": 10**9})),
            json.dumps(ground.event("job_finished", fields=_FAILED)),
        ],
    ),
    "detail_of_a_space": ("a node event with a space as detail, and the job's end", _befell(" ")),
    "detail_of_a_superscript": (
        "a node event with the detail Xid and a superscript two, and the job's end",
        _befell("Xid\u00b2"),
    ),
    "detail_of_digits": ("a node event with the Xid of 400 digits", _befell(f"Xid {_DIGITS}")),
    "sign_without_meaning": (
        "a node event with a sign of control characters",
        _event("node_event", {"sign": "\u0000\u001b[2J", "detail": "\u0007" * 100}),
    ),
    "price_without_end": (
        "a price of 1e300 for 2^53 GPUs",
        _event("job_started", {"num_gpus": 2**53, "price_per_gpu_hour": 1e300}),
    ),
    "integers_of_400_digits": (
        "integers of 400 digits",
        _raw(f'{{"num_gpus": {_DIGITS}, "num_nodes": {_DIGITS}, "world_size": -{_DIGITS}}}'),
    ),
    "integers_beyond_floats": ("2^63 ranks", _event("job_started", {"world_size": 2**63})),
    "infinity": ("the price 1e999", _raw('{"price_per_gpu_hour": 1e999, "num_gpus": 1}')),
    "not_a_number": ("NaN and Infinity as seconds", _raw('{"seconds": NaN, "x": Infinity}')),
    "depth": ("fields of 50,000 levels", _raw('{"x": ' + "[" * _DEPTH + "]" * _DEPTH + "}")),
    "depth_of_an_unknown_kind": (
        "an unknown kind with fields of 900 levels",
        _raw('{"x": ' + "[" * 900 + "]" * 900 + "}", "something_new"),
    ),
    "ranks_without_end": (
        "a list of 100,000 ranks",
        _event("attempt_started", {"ranks": list(range(100_000))}),
    ),
    "text_without_end": (
        "a reason of 900,000 characters",
        _event("job_finished", {**_FAILED, "reason": "x" * 900_000}),
    ),
    "attempt_without_end": ("the attempt 2^63", _event("attempt_started", {}, attempt=2**63)),
    "time_of_another_age": ("the time 1e300", _event("job_started", {}, time=1e300)),
    "time_before_all": ("the time 1e-300", _event("job_started", {}, time=1e-300)),
    "job_id_as_path": ("the job id ../../etc", _event("job_started", {}, job_id="../../etc")),
    "job_id_of_controls": (
        "a job id of control characters and a line end",
        _event("job_started", {}, job_id="\u001b[2J\n\u0000"),
    ),
    "duplicate_names": (
        "names that occur twice in one object",
        _raw('{"num_nodes": 1, "num_nodes": "x"}, "job_id": "victim", "kind": "job_finished"'),
    ),
    "not_an_object": ("lists, texts and null as events", lambda _: ["[]", '"x"', "null", "1"]),
    "not_utf8": ("bytes that are no UTF-8", lambda _: [b'{"id": "\xff\xfe"}', b"\x00\xff"]),
    "ids_of_a_neighbour": ("events with ids of the neighbour's next events", _known_ids),
    "thousands": ("5,000 events at once", _many),
    "outcome_of_mark_up": (
        "HTML in names and reasons",
        lambda ground: [
            json.dumps(
                ground.event("job_started", fields={"name": "<script>x</script>", "user": "<b>"})
            ),
            json.dumps(
                ground.event("job_finished", fields={**_FAILED, "reason": "<script>x</script>"})
            ),
        ],
    ),
    "goodput_of_strange_states": (
        "10,000 goodput states, negative seconds among them",
        _event("goodput", {"rank_seconds": {f"s{n}": -1e308 for n in range(10_000)}}),
    ),
}


def _no_mark_up(arena: "Arena", _: str) -> str:
    """The page of a job holds texts of others as text."""
    for name in ("spooled_outcome_of_mark_up", "posted_outcome_of_mark_up"):
        with contextlib.suppress(OSError):  # the ledger may refuse such a job
            if b"<script>x" in arena.read_ledger(f"/jobs/{name}"):
                return f"the ledger's page of {name} runs the attacker's script"
    return ""


def _spooled(lines: Lines) -> Callable[[Ground], None]:
    return lambda ground: ground.spool(*lines(ground))


def _posted(lines: Lines) -> Callable[[Ground], None]:
    def act(ground: Ground) -> None:
        encoded = lines(ground)
        for begin in range(0, min(len(encoded), 1000), 100):
            ground.deliver(*encoded[begin : begin + 100])

    return act


for _name, (_what, _lines) in _EVENTS.items():
    for _way, _how, _act in (
        ("spooled", "in events.jsonl", _spooled(_lines)),
        ("posted", "posted with a launcher's token", _posted(_lines)),
    ):
        register(
            Attack(
                f"{_way}_{_name}",
                "events",
                f"{_what}, {_how}",
                _act,
                DELIVERY_SECONDS,
                _no_mark_up if _name == "outcome_of_mark_up" else None,
            )
        )


@attack("events", seconds=DELIVERY_SECONDS)
def spooled_line_without_end(ground: Ground) -> None:
    """One line of 200 MB without an end in events.jsonl."""
    path = ground.job() / "events.jsonl"
    with path.open("wb") as file:
        for _ in range(200):
            file.write(b"x" * (1 << 20))
    path.chmod(0o644)


@attack("events", seconds=DELIVERY_SECONDS)
def spooled_million_lines(ground: Ground) -> None:
    """A million short lines in events.jsonl."""
    path = ground.job() / "events.jsonl"
    path.write_bytes(b"{}\n" * 1_000_000)
    path.chmod(0o644)


@attack("events", seconds=DELIVERY_SECONDS)
def spooled_file_cut_and_grown(ground: Ground) -> None:
    """An events.jsonl that shrinks and grows below the reader's position."""
    ground.spool(*_many(ground)[:100])
    path = ground.jobs / ground.name / "events.jsonl"
    body = path.read_bytes()
    for number in range(200):
        path.write_bytes(body[: number * 37])
        path.write_bytes(body)
