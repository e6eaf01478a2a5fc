"""Options that several commands have."""

from pathlib import Path

import click

from lockstep_alerts.reading.model import Duration
from lockstep_cli.options import Parsed

DURATION = Parsed("duration", Duration)
spec_option = click.option(
    "--spec", type=click.Path(path_type=Path), help="Alert spec; default: the shipped."
)
interval_option = click.option(
    "--interval",
    type=DURATION,
    help="Time between scrapes; default: as the spec declares.",
)
