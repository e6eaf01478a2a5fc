"""Who is missing in a hang, on simulated devices."""

import json
from typing import Any

import pytest
from simulated_device import SimulatedRank

from lockstep.hangs.node_watch import launched_by_dump
from lockstep_outcomes.progress.hangs import Hang
from lockstep_outcomes.progress.missing import Launched, RankState, find_missing
from lockstep_outcomes.progress.progress_events import hang_fields, hangs_of
from lockstep_records.events.event import Event

from .hang_cases import HANGS, LONG_STEPS, Case


def state_of(rank: SimulatedRank, case: Case) -> RankState:
    """What a page tells of a rank, and with a Flight Recorder the operations."""
    launched = {
        group: Launched(number, operation, rank.oldest(group))
        for group, (number, operation) in rank.counts.items()
    }
    if not case.recorded:
        launched = {group: Launched(each.number) for group, each in launched.items()}
    return RankState(
        rank=rank.rank,
        phase=rank.phase,
        step=rank.step if rank.phase == "other" else rank.step - 1,
        device=None if case.blind else "pending" if rank.device_pending else "passed",
        launched={} if case.blind else launched,
    )


@pytest.mark.parametrize("case", [*HANGS, *LONG_STEPS], ids=str)
def test_the_rank_that_the_others_wait_for_is_named_live_and_from_its_event(case: Case) -> None:
    ranks = case.job.run()
    states = tuple(state_of(rank, case) for at, rank in ranks.items() if at not in case.without)
    num_unseen = case.job.ranks - len(states)
    hang = Hang(limit_seconds=120.0, ranks=states, states=states, num_unseen=num_unseen)
    assert (hang.missing.ranks, hang.missing.kind) == (case.ranks, case.kind), hang.missing.why
    fields = json.loads(json.dumps(hang_fields(hang)))
    event = Event(kind="hang", job_id="job", attempt=0, fields=fields, time=1e9, node="n1")
    (record,) = hangs_of([event], 0)
    assert record.found == hang.missing


def test_nodes_that_hang_together_are_judged_by_the_ranks_of_all() -> None:
    """Each node sees a rank behind its others; only one of them is behind all."""
    steps = {"n1": {0: 41, 1: 42}, "n2": {2: 39, 3: 42}}
    events = []
    for node, by_rank in steps.items():
        states = tuple(RankState(rank=r, phase="forward", step=s) for r, s in by_rank.items())
        hang = Hang(limit_seconds=120.0, ranks=states, states=states, num_unseen=2)
        fields = json.loads(json.dumps(hang_fields(hang)))
        events.append(
            Event(kind="hang", job_id="job", attempt=0, fields=fields, time=1e9, node=node)
        )
    assert [record.missing for record in hangs_of(events, 0)] == [(2,), (2,)]


def entry(number: int, operation: str, **fields: Any) -> dict[str, Any]:
    names = {"process_group": ["0", "default_pg"], "profiling_name": f"nccl:{operation}"}
    return names | {"collective_seq_id": number, "state": "scheduled"} | fields


@pytest.mark.parametrize(
    ("entries", "launched"),
    [
        ([entry(7, "all_reduce", state="completed")], {"0": Launched(7, "all_reduce")}),
        (
            [entry(9, "barrier"), entry(8, "all_reduce"), entry(7, "all_gather", retired=True)],
            {"0": Launched(9, "barrier", (8, "all_reduce"))},
        ),
        ([entry(7, "send 0->1", is_p2p=True), {"process_group": 3}, 5], {}),
        (None, {}),
    ],
)
def test_a_dump_says_how_many_collectives_a_rank_has_launched(
    entries: list[Any] | None, launched: dict[str, Launched]
) -> None:
    assert launched_by_dump(json.dumps({"entries": entries}).encode()) == launched
    assert launched_by_dump(b"{") == {}


STEP = ["broadcast", "all_reduce", "all_reduce"]
EPOCH = [*STEP * 4, "barrier"]


@pytest.mark.parametrize(
    ("before", "called", "missing"),
    [
        (STEP * 20, "broadcast barrier", (1,)),
        (STEP * 20, "all_gather broadcast", (0,)),
        ([*EPOCH * 3, *STEP * 2], "barrier broadcast", (0,)),
        ([*STEP * 20, "barrier"], "broadcast barrier", (1,)),  # its next epoch has no step
        (STEP * 20, "all_reduce barrier scatter", (1, 2)),
        (STEP * 20, "broadcast barrier barrier", (0,)),  # most know better than before
        (STEP * 20, "all_reduce broadcast", (0, 1)),  # one of them left out another's call
        (STEP * 4, "broadcast barrier", (0, 1)),
        ([], "broadcast barrier", (0, 1)),
    ],
)
def test_of_as_many_ranks_in_unlike_collectives_who_calls_what_no_step_has_is_named(
    before: list[str], called: str, missing: tuple[int, ...]
) -> None:
    states = []
    for rank, operation in enumerate(called.split()):
        entries = [entry(n, each, retired=True) for n, each in enumerate(before, start=1)]
        entries.append(entry(len(before) + 1, operation))
        launched = launched_by_dump(json.dumps({"entries": entries}).encode())
        states.append(RankState(rank=rank, phase="sync", step=19, launched=launched))
    hang = Hang(limit_seconds=9.0, ranks=tuple(states), states=tuple(states), num_unseen=0)
    fields = json.loads(json.dumps(hang_fields(hang)))
    (record,) = hangs_of([Event(kind="hang", job_id="j", attempt=0, fields=fields)], 0)
    assert (record.missing, record.found) == (missing, hang.missing), hang.missing.why


@pytest.mark.parametrize(
    ("phases", "steps", "missing"),
    [
        ("done sync sync sync", (9, 9, 9, 9), (0,)),
        ("done done sync done", (9, 9, 9, 9), (0, 1, 3)),
        ("done sync backward sync", (5, 9, 9, 9), (0,)),
        ("done other", (9, 9), (1,)),  # saves its model after the loop
        ("done sync data sync", (9, 9, 9, 9), (2,)),
        ("done sync sync", (9, 9, 8), (2,)),
    ],
)
def test_who_has_finished_is_waited_for_by_who_is_in_another_step(
    phases: str, steps: tuple[int, ...], missing: tuple[int, ...]
) -> None:
    states = [
        RankState(rank=rank, phase=phase, step=step)
        for rank, (phase, step) in enumerate(zip(phases.split(), steps, strict=True))
    ]
    assert find_missing(states, len(states)).ranks == missing
