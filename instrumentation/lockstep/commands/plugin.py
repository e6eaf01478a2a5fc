"""Says where NCCL's plugin is, which records jobs that have no line of Lockstep."""

import os
from collections.abc import Mapping
from pathlib import Path

import click

LOADED, FOLLOWING = "NCCL_PROFILER_PLUGIN", "LOCKSTEP_NCCL_NEXT_PLUGIN"
_LIBRARY = Path(__file__).parents[1] / "libnccl-profiler-lockstep.so"


def plugin_path() -> Path:
    """The library that NCCL and RCCL load.

    Raises:
        ValueError: it was not compiled.
    """
    if not _LIBRARY.is_file():
        raise ValueError(f"{_LIBRARY} was not compiled; install a wheel of this machine, or gcc")
    return _LIBRARY


def plugin_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that load it; one that is loaded now is what it hands its calls on to.

    Raises:
        ValueError: it was not compiled.
    """
    path, before = str(plugin_path()), environment.get(LOADED, "")
    following = {FOLLOWING: before} if before not in {"", "none", path} else {}
    return {LOADED: path, **following}


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
