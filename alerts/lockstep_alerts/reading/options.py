"""Options that several commands have, and how durations are read."""

from pathlib import Path

import click

from lockstep_alerts.reading.model import Duration


def duration_option(
    _ctx: click.Context, _parameter: click.Parameter, value: str | None
) -> Duration | None:
    """Reads the text of an option; None where it is left out."""
    try:
        return None if value is None else Duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


spec_option = click.option(
    "--spec", type=click.Path(path_type=Path), help="Alert spec; default: the shipped."
)
interval_option = click.option(
    "--interval",
    callback=duration_option,
    metavar="DURATION",
    help="Time between scrapes; default: as the spec declares.",
)
