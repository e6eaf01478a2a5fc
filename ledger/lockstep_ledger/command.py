"""Keep what became of every job: serve, import and look at the ledger."""

import importlib

import click

# Loaded one by one, so that `serve --help` needs no Parquet and a reader no server.
_COMMANDS = {
    "serve": "serve:serve",
    "import": "import_events:import_events",
    "follow": "follow:follow",
    "jobs": "inspect:jobs",
    "job": "inspect:job",
    "dead-letters": "inspect:dead_letters",
    "replay": "replay:replay",
    "review": "review:review",
    "costs": "bills:costs",
    "statement": "bills:statement",
    "close": "bills:close",
    "correct": "bills:correct",
    "export": "export:export",
    "recount": "recount:recount",
    "backup": "backup:backup",
    "restore": "backup:restore",
    "upgrade": "backup:upgrade",
}


class _Commands(click.Group):
    """A group whose commands are modules of ``commands``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(f"lockstep_ledger.commands.{module}"), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands)
def ledger() -> None:
    """Keep what became of every job: outcomes, goodput, spend, exact SLO counts."""
