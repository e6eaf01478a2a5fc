"""The faults of a run: checked before it starts, applied at startup, and listed for one rank."""

import os
from collections.abc import Mapping

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kinds import KINDS
from lockstep_trainer.faults.parse import parse_all
from lockstep_trainer.layout.mesh import Layout
from lockstep_trainer.layout.world import World


def check_faults(config: TrainConfig, layout: Layout) -> None:
    """Refuses faults that the run cannot have.

    Raises:
        ValueError: one sentence that names the fault and the remedy.
    """
    for fault in parse_all(config, layout.world_size):
        if reason := KINDS[fault.kind].refuses(fault, config, layout):
            raise ValueError(f"fault {fault.kind} cannot be in this run: {reason}")


def faults_of(config: TrainConfig, world: World) -> tuple[Fault, ...]:
    """The faults that a rank meets in the steps of this start of the job."""
    # Every rank parses all faults, so that what is left to chance is the same on each.
    return tuple(
        fault
        for fault in parse_all(config, world.size)
        if fault.concerns(world.rank, world.attempt) and KINDS[fault.kind].in_step is not None
    )


def apply_startup_faults(config: TrainConfig, world: World) -> Mapping[str, str]:
    """The environment with the startup faults of this rank, which ``world`` was read without."""
    environment: Mapping[str, str] = os.environ
    for fault in parse_all(config, world.size):
        kind = KINDS[fault.kind]
        if kind.at_start is not None and fault.concerns(world.rank, world.attempt):
            fault.announce(rank=world.rank, step=0)
            environment = kind.at_start(fault, environment)
    return environment
