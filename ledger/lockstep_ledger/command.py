"""Keep what became of every job: serve, import and look at the ledger."""

import importlib
from typing import Any

import click

# Loaded one by one, so that `serve --help` needs no Parquet and a reader no server.
_COMMANDS = {
    "serve": "serve:serve",
    "import": "import_events:import_events",
    "jobs": "inspect:jobs",
    "job": "inspect:job",
    "dead-letters": "inspect:dead_letters",
    "replay": "import_events:replay",
    "review": "review:review",
    "costs": "bills:costs",
    "statement": "bills:statement",
    "export": "export:export",
    "backup": "backup:backup",
    "restore": "backup:restore",
}
_SCHEDULERS = {
    "slurm": "follow_slurm:follow_slurm",
    "kubernetes": "follow_kubernetes:follow_kubernetes",
}


class Commands(click.Group):
    """A group whose commands, MODULE:NAME in ``commands``, are loaded as they are asked for."""

    def __init__(self, *arguments: Any, modules: dict[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table, and those of groups."""
        return [*self._modules, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, whose module is loaded now; None where there is none of the name."""
        if cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._modules[cmd_name].partition(":")
        command = getattr(importlib.import_module(f"lockstep_ledger.commands.{module}"), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Commands, modules=_COMMANDS)
def ledger() -> None:
    """Keep what became of every job: outcomes, goodput, spend, exact SLO counts."""


@ledger.group(cls=Commands, modules=_SCHEDULERS)
def follow() -> None:
    """Deliver what a scheduler knows of its jobs to a ledger, until interrupted."""
