"""Writes a simulated hang as the Flight Recorder dumps that torch would leave."""

from typing import Any

from simulation import Rank, Recorded, Simulation

_START_NS = 1_700_000_000_000_000_000
_SECOND_NS = 1_000_000_000
_NAMES = {"all_reduce": "nccl:all_reduce", "all_gather": "nccl:_all_gather_base",
          "reduce_scatter": "nccl:_reduce_scatter_base"}  # fmt: skip


def dumps_of(simulation: Simulation) -> dict[int, dict[str, Any]]:
    """The dumps of all ranks; rings of different lengths, with and without starts."""
    draw = simulation.draw
    ring, with_starts = draw.choice([8, 40, 2000]), draw.choice([True, False])
    keeps_completed = draw.choice([True, True, False])
    return {
        index: _dump(simulation, index, ring, with_starts, keeps_completed)
        for index in range(len(simulation.ranks))
    }


def _dump(
    simulation: Simulation, index: int, ring: int, with_starts: bool, keeps_completed: bool
) -> dict[str, Any]:
    rank = simulation.ranks[index]
    own = {name: members for name, members in simulation.groups.items() if index in members}
    numbers = {name: number for number, name in enumerate(own)}
    entries = [
        _entry(own, numbers, index, (number, record), with_starts)
        for number, record in enumerate(rank.entries)
        if keeps_completed or not record.done
    ]
    return {
        "version": "2.10",
        "pg_config": {
            name.partition(":")[0]: {
                "name": name.partition(":")[0],
                "desc": name.partition(":")[2] or "default_pg",
                "ranks": str(list(members)),
            }
            for name, members in own.items()
        },
        "pg_status": {
            str(numbers[name]): _status(rank, name) for name in own if name in rank.counts
        },
        "entries": entries[-ring:],
    }


def _status(rank: Rank, name: str) -> dict[str, int]:
    records = [record for record in rank.entries if record.op.group == name]
    done = [record.numbers["op"] for record in records if record.done]
    begun = [record.numbers["op"] for record in records if record.started]
    return {
        "last_enqueued_collective": max((r.numbers["op"] for r in records), default=-1),
        "last_started_collective": max(begun, default=-1),
        "last_completed_collective": max(done, default=0),
    }


def _entry(
    groups: dict[str, tuple[int, ...]],
    numbers: dict[str, int],
    index: int,
    numbered: tuple[int, Recorded],
    with_starts: bool,
) -> dict[str, Any]:
    number, record = numbered
    members = groups[record.op.group]
    own = members.index(index)
    if record.peer is not None:
        way, peer = record.peer
        arrow = "->" if way == "send" else "<-"
        name = f"nccl:{way} {own}{arrow}{members.index(peer)}"
    else:
        name = _NAMES[record.op.kind]
    is_started = with_starts and record.started
    state = "completed" if record.done else "started" if is_started else "scheduled"
    created = _START_NS + record.created * _SECOND_NS
    return {
        "record_id": number,
        "process_group": (record.op.group.partition(":")[0],
                          record.op.group.partition(":")[2] or "default_pg"),
        "pg_id": numbers[record.op.group],
        "collective_seq_id": record.sequence,
        "p2p_seq_id": record.numbers["p2p"],
        "op_id": record.numbers["op"],
        "profiling_name": name,
        "time_created_ns": created,
        "time_discovered_started_ns": created + 1000 if is_started or (
            with_starts and record.done) else None,
        "time_discovered_completed_ns": created + 500_000 if record.done else None,
        "state": state,
        "is_p2p": record.peer is not None,
        "retired": record.done,
        "input_sizes": [[16]],
    }  # fmt: skip
