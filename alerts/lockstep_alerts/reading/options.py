"""Reads the durations of the commands' options."""

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
