"""Follow a scheduler: Slurm's accounting on a schedule, or a watch of Kubernetes."""

import click

from lockstep_ledger.commands.follow_kubernetes import follow_kubernetes
from lockstep_ledger.commands.follow_slurm import follow_slurm


@click.group()
def follow() -> None:
    """Deliver what a scheduler knows of its jobs to a ledger, until interrupted."""


follow.add_command(follow_slurm)
follow.add_command(follow_kubernetes)
