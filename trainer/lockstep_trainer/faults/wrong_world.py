"""A rank with a wrong environment at its start: another RANK, or another WORLD_SIZE."""

from functools import partial

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Environment, Kind, Value

_MAX_RANKS = 1_000_000


def _replace(name: str, fault: Fault, environment: Environment) -> Environment:
    return {**environment, name: f"{fault.values['value']:.0f}"}


KINDS = tuple(
    Kind(
        name=kind,
        at_start=partial(_replace, name),
        values=(Value(name="value", low=low, high=_MAX_RANKS, sort="whole number"),),
    )
    for kind, name, low in (("wrong-rank", "RANK", 0), ("wrong-world-size", "WORLD_SIZE", 1))
)
