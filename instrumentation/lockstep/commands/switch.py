"""Turns the monitor of a running job off or on, or changes what it records, without a restart."""

import dataclasses
from pathlib import Path
from typing import Any

import click

from lockstep_cli.options import DurationRange
from lockstep_records.files.jobs import find_job
from lockstep_records.files.switches import (
    MAX_HANG_SECONDS,
    MAX_SAMPLE_EVERY,
    Switches,
    read_switches,
    switches_path,
    write_switches,
)
from lockstep_records.text.durations import format_duration


def job_or_usage(job: str) -> Path:
    """The folder of a job by id or path; click.UsageError lists those that exist."""
    try:
        return find_job(job)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def change_switches(job: Path, **changes: Any) -> Switches:
    """Changes some of a job's switches in its file; all of them, or click.UsageError."""
    try:
        switches = dataclasses.replace(read_switches(switches_path(job)), **changes)
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
@click.option("--on/--off", "enabled", default=None, help="Turn the monitor on or off.")
@click.option(
    "--sample",
    "sample_every",
    metavar="STEPS",
    type=click.IntRange(0, MAX_SAMPLE_EVERY),
    help="Interval of recorded operations, in steps; 0 = none.",
)
@click.option(
    "--hang-timeout",
    "hang_seconds",  # the key in the file of switches
    type=DurationRange(0, MAX_HANG_SECONDS),
    help="Time without progress that is a hang, 20 median steps at least; 0s = do not watch.",
)
def switch(job: str, **options: Any) -> None:
    """Change what the ranks of JOB on this node record, from the next second on.

    Prints all switches of the job.
    """
    folder = job_or_usage(job)
    if all(value is None for value in options.values()):
        raise click.UsageError("nothing to change; give --on, --off, --sample or --hang-timeout")
    changes = {name: value for name, value in options.items() if value is not None}
    click.echo(describe(folder.name, change_switches(folder, **changes)))


def describe(job_id: str, switches: Switches) -> str:
    """What the ranks of a job record from now on, one sentence a line."""
    sample, hang = switches.sample_every, switches.hang_seconds
    lines = [f"job {job_id}: the monitor is {'on' if switches.enabled else 'off'}"]
    lines.append(
        "operations are recorded "
        + {None: "as the loop has set it", 0: "in no step", 1: "in every step"}.get(
            sample, f"in one step of {sample}"
        )
    )
    if hang is None:
        lines.append("hangs are watched as the loop has set it")
    elif hang:
        limit = format_duration(hang)
        lines.append(f"a hang is {limit} without progress, 20 median steps at least")
    else:
        lines.append("hangs are not watched")
    return "\n  ".join(lines)
