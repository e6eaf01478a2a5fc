"""Follow a scheduler: Slurm's accounting on a schedule, or a watch of Kubernetes."""

import click

from lockstep_ledger.command import Commands

# A feed of Kubernetes needs no store.
_MODULES = {
    "slurm": "follow_slurm:follow_slurm",
    "kubernetes": "follow_kubernetes:follow_kubernetes",
}


@click.group(cls=Commands, modules=_MODULES)
def follow() -> None:
    """Deliver what a scheduler knows of its jobs to a ledger, until interrupted."""
