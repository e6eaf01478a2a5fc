"""``lockstep alerts explain ALERT``: what an alert means, from the spec itself."""

import difflib
from pathlib import Path

import click
from rich.console import Console
from rich.markdown import Markdown

from lockstep_alerts.entry import SpecError
from lockstep_alerts.explain import explained
from lockstep_alerts.model import Duration
from lockstep_alerts.options import duration_option
from lockstep_alerts.shipped import runbooks_path, spec_path
from lockstep_alerts.spec import read_spec


@click.command()
@click.argument("alert")
@click.option("--spec", type=click.Path(path_type=Path), help="Alert spec; default: the shipped.")
@click.option(
    "--interval",
    callback=duration_option,
    metavar="DURATION",
    help="Time between scrapes; default: as the spec declares.",
)
def explain(alert: str, spec: Path | None, interval: Duration | None) -> None:
    """Say in words when ALERT fires, from which series, how soon, and how often falsely.

    Prints Markdown where the output is not a terminal.
    """
    try:
        read = read_spec(spec or spec_path(), interval)
    except SpecError as error:
        raise click.UsageError(str(error)) from error
    by_name = {symptom.alert: symptom for symptom in read.alerts}
    if alert not in by_name:
        near = difflib.get_close_matches(alert, by_name, 3, 0.4) or sorted(by_name)
        raise click.UsageError(
            f"ALERT {alert!r}: the spec has no such alert; try {', '.join(near)}"
        )
    text = explained(read, by_name[alert], runbooks_path())
    console = Console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        click.echo(text, nl=False)
