"""Writes the rule tests of a spec: ``python -m tests.alerts.cases.write``."""

from pathlib import Path

import click

from lockstep_alerts.output import GENERATED, write_files
from lockstep_alerts.reading.model import Duration
from lockstep_alerts.shipped import interval_option, spec_option, spec_path
from lockstep_alerts.spec import read_spec

from .promtool import rule_tests


@click.command()
@spec_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=GENERATED,
    show_default=True,
    help="Folder of the rules that `lockstep alerts generate` wrote by the same options.",
)
@interval_option
def write(*, spec: Path | None, out: Path, interval: Duration | None) -> None:
    """Write promtool's tests beside the rules of a spec, for `lockstep alerts test`."""
    files = rule_tests(read_spec(spec or spec_path(), interval))
    try:
        write_files(out, files)
    except OSError as error:
        raise click.UsageError(f"--out {out}: {error.strerror}; name a writable folder") from error
    for name in files:
        click.echo(out / name)


if __name__ == "__main__":
    write()
