"""Who is missing in a hang, on simulated devices."""

import json
from typing import Any

import pytest
from simulated_device import SimulatedRank

from lockstep_outcomes.progress.flight_recorders import launched_by_dump
from lockstep_outcomes.progress.missing import Launched, RankState, find_missing

from .hang_cases import HANGS, Case


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


@pytest.mark.parametrize("case", HANGS, ids=str)
def test_the_rank_that_the_others_wait_for_is_named(case: Case) -> None:
    ranks = case.job.run()
    states = [state_of(rank, case) for number, rank in ranks.items() if number not in case.without]
    missing = find_missing(states, case.job.ranks)
    assert (missing.ranks, missing.kind) == (case.ranks, case.kind), missing.why


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
