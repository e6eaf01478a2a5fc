"""Options that several subcommands share, and their checks."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from lockstep_cli.options import Parsed, option

Command = TypeVar("Command", bound=Callable[..., Any])
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
DEFAULT_STORE = "/var/lib/lockstep/ledger.db"
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _check_name(name: str) -> str:
    if not name or not name.isprintable() or len(name) > 200:  # noqa: PLR2004  # as the store holds
        raise ValueError(f"{name!r:.80} must be 1 to 200 printable characters.")
    return name


def _check_host(name: str) -> str:
    if not _HOST.fullmatch(name):
        raise ValueError(f"{name!r:.80} must be a host's name, such as ledger.example.")
    return name


LABEL_VALUE, HOST = Parsed("TEXT", _check_name), Parsed("NAME", _check_host)
"""Names that can be values of labels, and names of hosts without a port."""


store_option = option(
    "--store",
    metavar="DSN",
    envvar="LOCKSTEP_LEDGER_DSN",
    default=DEFAULT_STORE,
    help="Path of an SQLite file, or postgresql://USER@HOST/DATABASE.",
)
json_option = click.option("--json", "is_json", is_flag=True, help="Print JSON for machines.")


def follow_options(command: Command) -> Command:
    """Adds ``--url``, ``--token-file`` and ``--cluster`` of a feed."""
    cluster = option("--cluster", type=LABEL_VALUE, default="local", help="Name of the cluster.")
    token = click.option(
        "--token-file", type=FILE, help="File whose first line is a writer's token."
    )
    url = click.option("--url", required=True, help="The ledger, such as http://127.0.0.1:9450.")
    return url(token(cluster(command)))
