"""A rank with a wrong environment at its start: another RANK, or another WORLD_SIZE."""

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Environment, Kind, Value

_MAX_RANKS = 1_000_000


def _wrong(variable: str, low: int) -> Kind:
    def change(fault: Fault, environment: Environment) -> Environment:
        return {**environment, variable: f"{fault.values['value']:.0f}"}

    return Kind(
        name=f"wrong-{variable.lower().replace('_', '-')}",
        at_start=change,
        values=(Value(name="value", low=low, high=_MAX_RANKS, sort="whole number"),),
    )


KINDS = (_wrong("RANK", 0), _wrong("WORLD_SIZE", 1))
