"""A rank that was told wrong at its start: who it is, or how many there are."""

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Told, Value

_MOST_RANKS = 1_000_000


def _wrong_rank(fault: Fault, told: Told) -> Told:
    return {**told, "RANK": f"{fault.values['told']:.0f}"}


def _wrong_world_size(fault: Fault, told: Told) -> Told:
    return {**told, "WORLD_SIZE": f"{fault.values['told']:.0f}"}


KINDS = (
    Kind(
        name="wrong-rank",
        at_start=_wrong_rank,
        values=(Value(name="told", low=0, high=_MOST_RANKS, whole=True),),
    ),
    Kind(
        name="wrong-world-size",
        at_start=_wrong_world_size,
        values=(Value(name="told", low=1, high=_MOST_RANKS, whole=True),),
    ),
)
