"""A child of the launcher: writes the job's summary into one sink, once a minute and at the end."""

import sys
from importlib import import_module
from pathlib import Path

import click

from lockstep.sidecar import rounds
from lockstep.sinks.summary import Sink, SinkError, read_summary

_INTERVAL_SECONDS = 60.0


def main(sink: str, target: str, job: Path, interval_seconds: float = _INTERVAL_SECONDS) -> None:
    """Writes until the job is over; a failure is printed once and the next round tries again."""
    open_sink: Sink | None = None
    printed = ""
    for is_last in rounds(interval_seconds):
        summary = read_summary(job)
        if summary is None:
            continue
        try:
            # Loads the library of this sink only.
            if open_sink is None:
                open_sink = import_module(f"lockstep.sinks.{sink}").open_sink(job.name, target)
            open_sink.put(summary, last=is_last)
        except (SinkError, OSError) as error:
            if str(error) != printed:
                click.echo(f"lockstep: the summary to {sink} failed: {error}", err=True)
            printed = str(error)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
