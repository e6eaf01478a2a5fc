"""Starts and stops Prometheus, Alertmanager, a pager and the boards on this machine."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from lockstep_alerts.reading.model import Duration
from lockstep_alerts.shipped import DURATION, interval_option, one_machine_spec_path
from lockstep_alerts.spec import read_spec
from lockstep_alerts.stack import servers
from lockstep_alerts.stack.servers import Running, is_alive, is_ready
from lockstep_cli.options import option

_DIR = option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("lockstep-stack"),
    help="Folder of data, configurations, logs and pages.",
)
_PORT = click.IntRange(1, 65535)


def _show(state: dict[str, Running], conditions: dict[str, str]) -> None:
    table = Table("server", "url", "pid", "state")
    for name, running in state.items():
        table.add_row(name, running.url, str(running.pid), conditions[name])
    Console().print(table)


@click.group()
def stack() -> None:
    """Run Prometheus, Alertmanager, a pager and the boards as plain processes on loopback."""


@stack.command("up")
@_DIR
@click.option("--target", "targets", multiple=True, help="HOST:PORT of an agent; repeatable.")
@interval_option
@option(
    "--group-interval",
    type=DURATION,
    default="1m",
    help="Wait before Alertmanager notifies of changes in a group.",
)
@click.option("--prometheus-port", type=_PORT, help="Port of Prometheus; default: a free one.")
@click.option("--alertmanager-port", type=_PORT, help="Port of Alertmanager; default: free.")
@click.option("--pager-port", type=_PORT, help="Port of the pager; default: a free one.")
@click.option("--boards-port", type=_PORT, help="Port of the boards; default: a free one.")
def up_command(
    folder: Path,
    targets: tuple[str, ...],
    interval: Duration | None,
    group_interval: Duration,
    **ports: int | None,
) -> None:
    """Start all servers, wait until they are ready, and write DIR/stack.json."""
    chosen_ports = {
        name.removesuffix("_port"): port for name, port in ports.items() if port is not None
    }
    options = servers.StackOptions(
        folder=folder, targets=targets, group_interval=group_interval, ports=chosen_ports
    )
    state = servers.up(options, read_spec(one_machine_spec_path(), interval))
    _show(state, dict.fromkeys(state, "ready"))
    if servers.BOARDS not in state:
        reason = servers.read_last_line(folder / f"{servers.BOARDS}.log").removeprefix("lockstep: ")
        click.echo(f"boards are not served; everything else runs: {reason}", err=True)


@stack.command("down")
@_DIR
def down_command(folder: Path) -> None:
    """Stop the servers of the folder; data, logs and pages stay."""
    stopped = servers.down(folder)
    click.echo(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


def _condition(name: str, running: Running) -> str:
    if not is_alive(running):
        return "down"
    return "ready" if is_ready(running.url, servers.READY_PATHS.get(name, "/")) else "not ready"


@stack.command("status")
@_DIR
@click.pass_context
def status_command(ctx: click.Context, folder: Path) -> None:
    """Show each server and whether it is ready; exit 1 when one is down."""
    state = servers.read_state(folder)
    if not state:
        click.echo(f"no stack was started in {folder}", err=True)
        ctx.exit(1)
    conditions = {name: _condition(name, running) for name, running in state.items()}
    _show(state, conditions)
    ctx.exit(0 if set(conditions.values()) == {"ready"} else 1)
