"""A child of the launcher: reads the job's summary now and then and puts it into one sink."""

import sys
from importlib import import_module
from pathlib import Path

import click

from lockstep.sidecar import rounds
from lockstep.sinks.summary import Sink, SinkError, read_summary

_EVERY_SECONDS = 60.0


def main(sink: str, target: str, job: Path, every_seconds: float = _EVERY_SECONDS) -> None:
    """Writes until the job is over; what goes wrong is said once and tried again."""
    opened: Sink | None = None
    said = ""
    for last in rounds(every_seconds):
        summary = read_summary(job)
        if summary is None:
            continue
        try:
            if opened is None:
                opened = import_module(f"lockstep.sinks.{sink}").open_sink(job.name, target)
            opened.put(summary, last=last)
        except (SinkError, OSError) as error:
            if str(error) != said:
                click.echo(f"lockstep: the summary to {sink} failed: {error}", err=True)
            said = str(error)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
