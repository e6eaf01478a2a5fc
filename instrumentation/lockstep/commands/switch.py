"""Turns the monitor of a running job off or on, or changes what it records, without a restart."""

import dataclasses
from pathlib import Path
from typing import Any

import click

from lockstep_records.jobs import find_job
from lockstep_records.options import DurationRange
from lockstep_records.switches import (
    MAX_HANG_SECONDS,
    MAX_SAMPLE_EVERY,
    Switches,
    read_switches,
    switches_path,
    write_switches,
)


def job_or_usage(job: str) -> Path:
    """The folder of a job by id or path.

    Raises:
        click.UsageError: there is none; the text says what there is.
    """
    try:
        return find_job(job)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def turn_switches(job: Path, **changed: Any) -> Switches:
    """The switches of a job with some of them changed, written.

    Raises:
        click.UsageError: the file holds something else, a value cannot be, or no file can be
            written; the text names it.
    """
    try:
        switches = dataclasses.replace(read_switches(switches_path(job)), **changed)
        write_switches(job, switches)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.UsageError(
            f"folder {job} cannot be written ({error.strerror}); run this as the job's user"
        ) from error
    return switches


@click.command()
@click.argument("job")
@click.option("--on/--off", "enabled", default=None, help="Whether the monitor records at all.")
@click.option(
    "--sample",
    "sample_every",
    metavar="STEPS",
    type=click.IntRange(0, MAX_SAMPLE_EVERY),
    help="Record the operations of each so-many-th step; 0 = of none.",
)
@click.option(
    "--hang-timeout",
    "hang_seconds",
    type=DurationRange(0, MAX_HANG_SECONDS),
    help="Time without progress that is a hang, 20 median steps at least; 0s = do not watch.",
)
def switch(job: str, **options: Any) -> None:
    """Change what the ranks of JOB on this node record; they look once a second.

    Prints the switches as they are then.
    """
    folder = job_or_usage(job)
    if all(value is None for value in options.values()):
        raise click.UsageError("nothing to turn; give --on, --off, --sample or --hang-timeout")
    changed = {name: value for name, value in options.items() if value is not None}
    click.echo(turn_switches(folder, **changed))
