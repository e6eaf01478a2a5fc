"""Finds the files that ship with the code: in the package of a wheel, above it in a checkout."""

from pathlib import Path

import click

from lockstep_alerts.reading.model import Duration
from lockstep_cli.options import Parsed

DURATION = Parsed("duration", Duration)
spec_option = click.option(
    "--spec", type=click.Path(path_type=Path), help="Alert spec; default: the shipped."
)
interval_option = click.option(
    "--interval", type=DURATION, help="Time between scrapes; default: as the spec declares."
)


_PACKAGE = Path(__file__).parent


def _shipped(name: str) -> Path:
    in_wheel = _PACKAGE / name
    return in_wheel if in_wheel.exists() else _PACKAGE.parent / name


def spec_path() -> Path:
    """The alert spec that comes with Lockstep."""
    return _shipped("slos.yaml")


def one_machine_spec_path() -> Path:
    """The spec of a first try on one machine: what it has other than the shipped one."""
    return _shipped("one_machine.yaml")


def runbooks_path() -> Path:
    """The folder of runbooks, one file an alert."""
    return _shipped("runbooks")


def measured_path() -> Path:
    """What clusters of several sizes cost a Prometheus, as ``make bench-scale`` measured it."""
    return _shipped("measured.json")
