"""Options that all feeds of schedulers have."""

from collections.abc import Callable
from typing import Any

import click

from lockstep_ledger.options import FILE, check_name

_OPTIONS = (
    click.option("--url", required=True, help="The ledger, such as http://127.0.0.1:9450."),
    click.option("--token-file", type=FILE, help="File whose first line is a writer's token."),
    click.option(
        "--cluster",
        default="local",
        show_default=True,
        callback=check_name,
        help="Name of the cluster.",
    ),
)


def follow_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the ledger's address, a token and the name of the cluster."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
