"""Starts and stops Prometheus, Alertmanager and a pager on this machine."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from lockstep_alerts.model import Duration
from lockstep_alerts.processes import Running, is_alive, is_ready
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import SpecError, read_spec
from lockstep_alerts.stack import READY_PATHS, StackError, StackOptions, down, read_state, up

_DIR = click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("lockstep-stack"),
    show_default=True,
    help="Folder with data, configurations, logs and pages.",
)
_PORT = click.IntRange(1, 65535)


def _duration(ctx: click.Context, param: click.Parameter, value: str) -> Duration:
    del ctx, param
    try:
        return Duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _show(state: dict[str, Running], words: dict[str, str]) -> None:
    table = Table("server", "url", "pid", "state")
    for name, running in state.items():
        table.add_row(name, running.url, str(running.pid), words[name])
    Console().print(table)


@click.group()
def stack() -> None:
    """Run Prometheus, Alertmanager and a pager as plain processes on loopback."""


@stack.command("up")
@_DIR
@click.option("--target", "targets", multiple=True, help="HOST:PORT of an agent; repeatable.")
@click.option(
    "--interval",
    callback=_duration,
    metavar="DURATION",
    default="5s",
    show_default=True,
    help="Time between scrapes, and between evaluations of the rules.",
)
@click.option(
    "--group-interval",
    callback=_duration,
    metavar="DURATION",
    default="1m",
    show_default=True,
    help="Time before news of a group that was told already are told.",
)
@click.option("--prometheus-port", type=_PORT, help="Default: a free one.")
@click.option("--alertmanager-port", type=_PORT, help="Default: a free one.")
@click.option("--pager-port", type=_PORT, help="Default: a free one.")
def up_command(
    folder: Path,
    targets: tuple[str, ...],
    interval: Duration,
    group_interval: Duration,
    **ports: int | None,
) -> None:
    """Start all, wait until they are ready, and write DIR/stack.json."""
    told = {name.removesuffix("_port"): port for name, port in ports.items() if port is not None}
    try:
        options = StackOptions(
            folder=folder,
            targets=targets,
            interval=interval,
            group_interval=group_interval,
            ports=told,
        )
        state = up(options, read_spec(spec_path()))
    except (StackError, SpecError) as error:
        raise click.UsageError(str(error)) from error
    _show(state, dict.fromkeys(state, "ready"))


@stack.command("down")
@_DIR
def down_command(folder: Path) -> None:
    """Stop all that was started over the folder; data, logs and pages stay."""
    try:
        ran = down(folder)
    except StackError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"stopped {', '.join(ran)}" if ran else "nothing ran any more")


def _word(name: str, running: Running) -> str:
    if not is_alive(running):
        return "down"
    return "ready" if is_ready(running.url, READY_PATHS.get(name, "/")) else "not ready"


@stack.command("status")
@_DIR
@click.pass_context
def status_command(ctx: click.Context, folder: Path) -> None:
    """Tell what runs; exit 1 when something is down."""
    try:
        state = read_state(folder)
    except StackError as error:
        raise click.UsageError(str(error)) from error
    if not state:
        click.echo(f"no stack was started over {folder}", err=True)
        ctx.exit(1)
    words = {name: _word(name, running) for name, running in state.items()}
    _show(state, words)
    ctx.exit(0 if all(word == "ready" for word in words.values()) else 1)
