"""Says where NCCL's plugin is, which records jobs that have no line of Lockstep."""

import os

import click

from lockstep.launch.nccl_plugin import LOADED, plugin_settings


@click.command()
@click.option("--path", "only_path", is_flag=True, help="Print the path alone.")
def plugin(*, only_path: bool) -> None:
    """Print the lines that have NCCL load its plugin, in every framework.

    For a whole cluster they belong into /etc/nccl.conf, or /etc/rccl.conf.
    """
    try:
        settings = plugin_settings(os.environ)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if only_path:
        click.echo(settings[LOADED])
        return
    for name, value in settings.items():
        click.echo(f"{name}={value}")
