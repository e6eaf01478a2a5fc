"""``lockstep alerts openslo export`` and ``import``."""

from pathlib import Path

import click
import yaml

from lockstep_alerts.openslo.export import documents
from lockstep_alerts.openslo.read import entries
from lockstep_alerts.output.write import to_yaml
from lockstep_alerts.reading.options import spec_option
from lockstep_alerts.reading.yaml_lines import load_all
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

_HEAD = "# Made by `lockstep alerts openslo import`: to be moved to objectives: of slos.yaml.\n"


@click.group()
def openslo() -> None:
    """Write objectives as OpenSLO v1, and read OpenSLO v1 as objectives."""


@openslo.command("export")
@spec_option
def export_objectives(spec: Path | None) -> None:
    """Print every objective as an OpenSLO v1 document."""
    objectives = read_spec(spec or spec_path()).objectives
    text = yaml.safe_dump_all(documents(objectives), sort_keys=False, width=1000)
    click.echo(text, nl=False)


@openslo.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--measure",
    default="M1",
    show_default=True,
    help="Measure of objectives whose documents name none.",
)
def import_documents(file: Path, measure: str) -> None:
    """Print the documents of FILE as entries of slos.yaml; refuse what an entry cannot say."""
    found = entries(file, load_all(file, "FILE"), measure)
    click.echo(to_yaml({"objectives": found}, _HEAD), nl=False)
