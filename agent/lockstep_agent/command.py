"""Serve metrics of this node's GPUs, network ports and training ranks for Prometheus to scrape."""

from dataclasses import replace
from typing import Any

import click

from lockstep_agent.options import Options, command_options
from lockstep_cli.options import config_option


@click.command()
@config_option
@command_options()
@click.option("--once", is_flag=True, help="Print one scrape on stdout and exit.")
def agent(*, once: bool, **values: Any) -> None:
    """Serve metrics of this node's GPUs, network ports and training ranks for Prometheus."""
    from lockstep_agent import program  # noqa: PLC0415  # --help needs none of the agent's parts

    options = Options(**values)
    if once:
        # A running agent continues from the state folder, so nothing is written there.
        program.print_once(replace(options, state=None))
    else:
        program.serve(options)
