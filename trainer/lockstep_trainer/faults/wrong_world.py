"""A rank with a wrong environment at its start: another RANK, or another WORLD_SIZE."""

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Environment, Kind, Value

_MAX_RANKS = 1_000_000


def _wrong_rank(fault: Fault, environment: Environment) -> Environment:
    return {**environment, "RANK": f"{fault.values['value']:.0f}"}


def _wrong_world_size(fault: Fault, environment: Environment) -> Environment:
    return {**environment, "WORLD_SIZE": f"{fault.values['value']:.0f}"}


KINDS = (
    Kind(
        name="wrong-rank",
        at_start=_wrong_rank,
        values=(Value(name="value", low=0, high=_MAX_RANKS, sort="whole number"),),
    ),
    Kind(
        name="wrong-world-size",
        at_start=_wrong_world_size,
        values=(Value(name="value", low=1, high=_MAX_RANKS, sort="whole number"),),
    ),
)
