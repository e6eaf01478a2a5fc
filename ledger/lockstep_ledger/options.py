"""Options that several subcommands share, and their checks."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click

from lockstep_records.shared.options import read_address

Command = TypeVar("Command", bound=Callable[..., Any])
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
DEFAULT_STORE = "/var/lib/lockstep/ledger.db"
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def store_option(command: Command) -> Command:
    """Adds ``--store``."""
    return click.option(
        "--store",
        metavar="DSN",
        envvar="LOCKSTEP_LEDGER_DSN",
        default=DEFAULT_STORE,
        show_default=True,
        help="Path of an SQLite file, or postgresql://USER@HOST/DATABASE.",
    )(command)


def json_option(command: Command) -> Command:
    """Adds ``--json``."""
    return click.option("--json", "is_json", is_flag=True, help="Print JSON for machines.")(command)


def rates_option(command: Command) -> Command:
    """Adds ``--rates``."""
    return click.option(
        "--rates",
        type=FILE,
        envvar="LOCKSTEP_LEDGER_RATES",
        help="Rate card in YAML; without it the price that a job declares holds.",
    )(command)


def timezone_option(help_text: str) -> Callable[[Command], Command]:
    """Adds ``--timezone``; its value is a ``ZoneInfo``."""
    return click.option(
        "--timezone",
        "zone",
        metavar="NAME",
        envvar="LOCKSTEP_LEDGER_TIMEZONE",
        default="UTC",
        show_default=True,
        callback=check_zone,
        help=help_text,
    )


def follow_options(command: Command) -> Command:
    """Adds ``--url``, ``--token-file`` and ``--cluster`` of a feed."""
    cluster = click.option(
        "--cluster",
        default="local",
        show_default=True,
        callback=check_name,
        help="Name of the cluster.",
    )
    token = click.option(
        "--token-file", type=FILE, help="File whose first line is a writer's token."
    )
    url = click.option("--url", required=True, help="The ledger, such as http://127.0.0.1:9450.")
    return url(token(cluster(command)))


def check_zone(_context: click.Context, _parameter: click.Parameter, name: str) -> ZoneInfo:
    """A time zone by its name."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise click.BadParameter(
            f"{name!r:.80} is not a time zone of this machine; write a name such as Europe/Berlin."
        ) from error


def check_listen(
    _context: click.Context, _parameter: click.Parameter, text: str
) -> tuple[str, int]:
    """Host and port of an address."""
    try:
        return read_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def check_names(
    _context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Names that can be values of labels."""
    for name in names:
        check_name(_context, _parameter, name)
    return names


def check_name(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    """A name that can be the value of a label."""
    if not name or not name.isprintable() or len(name) > 200:  # noqa: PLR2004  # as the store holds
        raise click.BadParameter(f"{name!r:.80} must be 1 to 200 printable characters.")
    return name


def check_hosts(
    _context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Names of hosts, without a port."""
    for name in names:
        if not _HOST.fullmatch(name):
            raise click.BadParameter(f"{name!r:.80} must be a host's name, such as ledger.example.")
    return names
